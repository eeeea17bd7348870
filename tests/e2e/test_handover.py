"""A person's side of a manual pool, typed as a person would, while a daemon plans and settles."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.clock import real_now
from scheduler.store.engine import open_database
from scheduler.views.needs import needs
from tests.lab.patience import PATIENCE_SECONDS, until
from tests.lab.typed import told

SETTINGS = """
state_dir = "state"
models = []

[corpus]
sources = ["stdlib"]

[clock]
epoch = {now}
origin = {now}
scale = 60.0

[[pools]]
name = "studio-lab"
platform = "manual"
accelerator = "T4"
session_cap = "4h"
session_min = "10m"
setup = "1m"

[[pools.quotas]]
name = "hours of a day"
kind = "first-use"
limit = "4h"
span = "24h"
"""
TRAINING = """
from trainer_kit import Training
training = Training()
training.progress(0)
training.checkpoint(training.target_step, lambda folder: (folder / "weights").write_text("good"), {"loss": 1.0})
"""

Type = Callable[..., Any]


@pytest.fixture
def schedctl(tmp_path: Path) -> Type:
    """Type a command; returns what it said in JSON."""
    (tmp_path / "config.toml").write_text(SETTINGS.format(now=float(int(real_now()))))
    (tmp_path / "train.py").write_text(TRAINING)
    # A person's own shell may name other settings.
    environment = {name: text for name, text in os.environ.items() if not name.startswith("SCHEDCTL_")}

    def typed(*words: str, expected: int = 0) -> Any:
        command = [sys.executable, "-m", "scheduler", "--config", "config.toml", "--json", *words]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == expected, ended.stderr
        return json.loads(ended.stdout or ended.stderr.splitlines()[-1])

    return typed


@pytest.fixture
def daemon(tmp_path: Path, schedctl: Type) -> Iterator[None]:
    """A daemon on the settings."""
    schedctl("db", "init")
    words = [sys.executable, "-m", "scheduler", "--config", "config.toml", "daemon"]
    with (tmp_path / "daemon.log").open("wb") as log:
        process = subprocess.Popen(words, cwd=tmp_path, stderr=log, stdout=log)
    yield
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_SECONDS) == 0, (tmp_path / "daemon.log").read_text()


def wanted(folder: Path) -> list[str]:
    """Return what a person is to type about offered sessions. In this process: an offer lapses in half a minute."""
    database = open_database(f"sqlite:///{folder}/state/scheduler.db", read_only=True)
    try:
        with database.read() as tx:
            return [need.remedy for need in needs(tx, (), 0, 0) if need.what == "session offered"]
    finally:
        database.close()


@pytest.mark.usefixtures("daemon")
def test_a_person_takes_runs_and_hands_in_a_session(tmp_path: Path, schedctl: Type) -> None:
    """The job is finished, and the time that a person used counts against the quota."""
    command = f"{{python}} {tmp_path / 'train.py'}"
    rest = f"command = {json.dumps(command.split())}\ntarget_step = 5\nsteps_per_hour = 5\nmixture = {{}}\n"
    (tmp_path / "job.toml").write_text(f'name = "ufm"\nrole = "manager"\n{rest}')
    schedctl("queue", "add", "job.toml")

    config = tmp_path / "config.toml"

    def offered() -> Any:
        return next(
            (found for found in told(config, "handover", "list")["handovers"] if found["state"] == "queued"), None
        )

    key = until(offered, "an offer")["key"]
    assert schedctl("handover", "take", "uff-nobody-1", expected=5)["error"]["kind"] == "NotFound"
    assert schedctl("handover", "submit", key, "config.toml", expected=6)["error"]["kind"] == "Refusal"

    assert wanted(tmp_path) == [f"schedctl handover claim {key}"]
    notebook, _data = schedctl("handover", "claim", key, "--out", "lab")["files"]
    assert wanted(tmp_path) == []
    cell = json.loads((tmp_path / notebook).read_bytes())["cells"][1]["source"]
    (tmp_path / "cell.py").write_text("".join(cell))
    words = [sys.executable, "-m", "scheduler", "--config", "config.toml", "runs", "logs", key]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    assert said == f"{key} is not over, and studio-lab shows what a session printed only afterwards.\n"
    subprocess.run([sys.executable, tmp_path / "cell.py"], cwd=tmp_path / "lab", check=True, capture_output=True)
    schedctl("handover", "submit", key, f"lab/{key}-result.zip")

    def finished() -> Any:
        shown = told(config, "queue", "show", "ufm")["job"]
        return shown if shown["state"] == "done" else None

    assert until(finished, "the end of the job")["done_step"] == 5
    (meter,) = schedctl("quota")["quotas"]
    assert meter["held"] == 0
    assert 0 < meter["used"] < 3_600
    assert schedctl("handover", "give", key, f"lab/{key}-result.zip", expected=6)["error"]["kind"] == "Refusal"
    assert schedctl("db", "verify")
