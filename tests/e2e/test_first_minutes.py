"""From nothing to an own script that trains, with a stopwatch: three commands, no line of settings, seen in seconds."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scheduler.clock import stopwatch
from tests.lab.patience import PATIENCE_SECONDS, slowness, until
from tests.lab.typed import told

SCRIPT = """\
import json
import time
from trainer_kit import Training

training = Training()
step, loss = 0, 4.0
if training.resume_dir:
    step, loss = json.loads((training.resume_dir / "state.json").read_text())

def write(folder):
    (folder / "state.json").write_text(json.dumps([step, loss]))

while step < training.target_step and not training.should_stop:
    step, loss = step + 1, loss * 0.999
    time.sleep(0.01)
    training.progress(step, loss=loss)
    if training.should_save:
        training.checkpoint(step, write, {"loss": loss})
training.checkpoint(step, write, {"loss": loss})
"""
SEEN_SECONDS = 15.0


def test_an_own_script_trains_after_three_commands_and_is_seen_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(SCRIPT.splitlines()) <= 20
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(SCRIPT)
    kept = {name: text for name, text in os.environ.items() if name in {"PATH", "LANG", "TMPDIR"}}
    environ = {**kept, "HOME": str(tmp_path), "USER": "newcomer"}
    program = str(Path(sys.executable).with_name("schedctl"))

    def schedctl(*words: str) -> str:
        done = subprocess.run([program, *words], cwd=work, env=environ, capture_output=True, text=True, check=True)
        return done.stdout

    def status() -> dict[str, Any]:
        return told(tmp_path / ".config" / "uff-scheduler" / "config.toml", "status")

    monkeypatch.setenv("HOME", str(tmp_path))  # the waits ask in this process
    schedctl("init")
    schedctl("submit", "train.py", "--target-step", "1000000")
    with (tmp_path / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen([program, "daemon"], cwd=work, env=environ, stdout=log, stderr=log)
    try:
        until(lambda: status()["runs"], "the session is launched", every=0.5)
        launched, patience = stopwatch(), SEEN_SECONDS * slowness()
        training = until(
            lambda: next((job["training"] for job in status()["jobs"] if job["training"]["step"]), None),
            "it trains",
            every=0.5,
        )
        assert stopwatch() - launched <= patience
        assert training["health"] == "trains"
        assert "On track · 1 running" in schedctl("status")
        schedctl("queue", "cancel", "--all", "--yes")
        until(lambda: not status()["runs"], "the session saves and ends", every=0.5)
    finally:
        daemon.terminate()
        daemon.wait(timeout=PATIENCE_SECONDS)
