"""Installed by pipx or uv as one person would: a wheel in an environment of its own, from a folder as the index."""

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


@pytest.mark.parametrize("tool", ["pipx", "uv"])
def test_the_program_installs_with_a_tool_and_works(tool: str, repository: Path, wheels: Path, tmp_path: Path) -> None:
    program = shutil.which(tool) or shutil.which(tool, path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip(f"{tool} is not installed (pipx: Debian's pipx; uv: the extra uv)")
    install = [program, "install"] if tool == "pipx" else [program, "tool", "install"]
    (wheel,) = WheelBuilder(str(repository)).build(directory=str(tmp_path), versions=["standard"])
    usual = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SCHED", "XDG_", "PIP", "PYTHON", "UV_"))
    }
    environment = {
        **usual,
        "HOME": str(tmp_path),
        "PIPX_HOME": str(tmp_path / "pipx"),
        "PIPX_BIN_DIR": str(tmp_path / "bin"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "UV_TOOL_DIR": str(tmp_path / "uv"),
        "UV_TOOL_BIN_DIR": str(tmp_path / "bin"),
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "UV_NO_CONFIG": "1",
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": str(wheels),
    }

    def run(*words: str | Path, folder: Path = tmp_path) -> str:
        answer = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600
        )
        assert answer.returncode == 0, f"{words}: {answer.stderr[-2000:]}"
        return answer.stdout

    run(*install, "--python", getattr(sys, "_base_executable", sys.executable), wheel)
    schedctl = tmp_path / "bin/schedctl"
    assert json.loads(run(schedctl, "version", "--json"))["version"]
    run(schedctl, "init")
    script = _script(tmp_path)
    run(schedctl, "submit", script, "--target-step", "5", "--steps-per-hour", "100", folder=script.parent)
    assert [job["name"] for job in json.loads(run(schedctl, "queue", "list", "--json"))["jobs"]] == ["trainer"]
    names = {check["check"]: check["grade"] for check in json.loads(run(schedctl, "doctor", "--json"))["checks"]}
    assert names["package names"] == "ok", "config, jobs, platforms and scheduler are ours alone there"
    assert "schedctl" in run(schedctl, "--help")
    run(*install[:-1], "uninstall", "uff-scheduler")
    assert not schedctl.exists()


def _script(folder: Path) -> Path:
    script = folder / "trainer/train.py"
    script.parent.mkdir()
    script.write_text("print('hello')\n")
    return script
