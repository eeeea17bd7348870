"""Installed by pipx as one person would: the wheel in an environment of its own, from an index that is a folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

pytestmark = pytest.mark.nightly


@pytest.fixture
def wheels(repository: Path) -> Path:
    """The folder with wheels of all that the program needs."""
    folder = Path(os.environ.get("UFF_WHEELS") or repository / "out/wheels")
    if not list(folder.glob("pip-*.whl")):
        pytest.skip(f"{folder} holds no wheels: .ci/wheels.sh fetches them")
    return folder


def test_pipx_installs_the_program_which_then_works(repository: Path, wheels: Path, tmp_path: Path) -> None:
    pipx = shutil.which("pipx")
    if pipx is None:
        pytest.skip("pipx is not installed (Debian: pipx)")
    (wheel,) = WheelBuilder(str(repository)).build(directory=str(tmp_path), versions=["standard"])
    usual = {
        name: value for name, value in os.environ.items() if not name.startswith(("SCHED", "XDG_", "PIP", "PYTHON"))
    }
    environment = {
        **usual,
        "HOME": str(tmp_path),
        "PIPX_HOME": str(tmp_path / "pipx"),
        "PIPX_BIN_DIR": str(tmp_path / "bin"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
    }

    def run(*words: str | Path, folder: Path = tmp_path) -> str:
        answer = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600
        )
        assert answer.returncode == 0, f"{words}: {answer.stderr[-2000:]}"
        return answer.stdout

    run(pipx, "install", "--python", getattr(sys, "_base_executable", sys.executable), wheel)
    schedctl = tmp_path / "bin/schedctl"
    assert json.loads(run(schedctl, "version", "--json"))["version"]
    run(schedctl, "init")
    script = _script(tmp_path)
    run(schedctl, "submit", script, "--target-step", "5", "--steps-per-hour", "100", folder=script.parent)
    assert [job["name"] for job in json.loads(run(schedctl, "queue", "list", "--json"))["jobs"]] == ["trainer"]
    names = {check["check"]: check["grade"] for check in json.loads(run(schedctl, "doctor", "--json"))["checks"]}
    assert names["package names"] == "ok", "config, jobs, platforms and scheduler are ours alone there"
    assert "schedctl" in run(schedctl, "--help")
    run(pipx, "uninstall", "uff-scheduler")
    assert not schedctl.exists()


def _script(folder: Path) -> Path:
    script = folder / "trainer/train.py"
    script.parent.mkdir()
    script.write_text("print('hello')\n")
    return script
