"""A folder of code, and git in it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Git = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a script, a program, a link and what tools leave."""
    made = tmp_path / "code"
    (made / "lib").mkdir(parents=True)
    (made / "train.py").write_text("print(1)\n")
    (made / "lib" / "model.py").write_text("X = 1\n")
    (made / "run.sh").write_text("#!/bin/sh\n")
    (made / "run.sh").chmod(0o755)
    (made / "newest.py").symlink_to("lib/model.py")
    for name in (".hidden/x", "__pycache__/a.pyc", "venv/pyvenv.cfg", "env3/pyvenv.cfg", "env3/lib/y.py"):
        (made / name).parent.mkdir(exist_ok=True, parents=True)
        (made / name).write_text("tool")
    return made


@pytest.fixture
def git(folder: Path) -> Git:
    """Runs git in the folder, as its owner does."""

    def run(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(("git", "-C", folder, *identity, *words), check=True, capture_output=True, text=True)
        return done.stdout.strip()

    return run
