"""The agent as a platform runs it: real processes, real files, a scripted training command."""

import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.payload.clock import Clock
from tests.lab.patience import PATIENCE_SECONDS

# Counts, a step each time the agent's side wakes it or every few milliseconds; state is one number in one file.
COUNTER = """
import json, os, select, sys
from trainer_kit import Training
training = Training()
step = json.loads((training.resume_dir / "state.json").read_text()) if training.resume_dir else 0
def write(folder):
    (folder / "state.json").write_text(json.dumps(step))
training.progress(step)
while step < training.target_step:
    if training.should_save:
        training.checkpoint(step, write, {"loss": 1 / (step + 1)})
    if training.should_stop:
        sys.exit(0)
    select.select([], [], [], 0.002)
    step += 1
    training.progress(step, loss=1 / step)
training.checkpoint(step, write, {"loss": 1 / step})
"""


class Session:
    """One launch: writes launch.json, starts the agent, reads what it left."""

    counter = COUNTER

    def __init__(self, folder: Path, payload: Path) -> None:
        self.folder, self.payload = folder, payload
        self.store = folder / "store"
        self.store.mkdir(exist_ok=True)
        self.process: subprocess.Popen[str] | None = None
        self.said: list[str] = []

    def write(self, *lanes: dict[str, Any], seconds: float = 60.0, scale: float = 1.0, **changes: Any) -> None:
        """Write launch.json; seconds are wall seconds."""
        now = Clock().now()
        self.epoch = 1_763_769_600.0
        self.deadline = self.epoch + seconds * scale
        document = {
            "format": 1,
            "run": "run-0001",
            "clock": {"epoch": self.epoch, "origin": now, "scale": scale},
            "started_at": int(self.epoch),
            "deadline": self.deadline,
            "stop_margin_seconds": 0.5 * scale,
            "heartbeat_seconds": 0.1 * scale,
            "grace_seconds": 10 * scale,
            "mtbf_seconds": 1e9 * scale,
            "work_dir": "work",
            "store": {"kind": "directory", "root": str(self.store)},
            "expected_devices": None,
            "lanes": list(lanes),
            **changes,
        }
        (self.folder / "launch.json").write_text(json.dumps(document))

    def lane(self, script: str, index: int = 0, **changes: Any) -> dict[str, Any]:
        """Return a lane that runs a script."""
        path = self.folder / f"train-{index}.py"
        path.write_text(script)
        return {
            "index": index,
            "job": f"job{index}",
            "attempt": 1,
            "devices": [index],
            "seed": 7,
            "target_step": 1_000_000,
            "command": ["{python}", str(path)],
            "environment": {},
            "data": "",
            "setup_seconds": 1,
            "checkpoint_seconds": 0.1,
            "restore": [],
            **changes,
        }

    def start(self, *words: str, options: tuple[str, ...] = (), **environment: str) -> None:
        """Start the agent; ``words`` come before the launch file, ``options`` after it."""
        self.process = subprocess.Popen(
            [sys.executable, *(words or (str(self.payload / "agent.py"),)), "launch.json", *options],
            cwd=self.folder,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, words: str) -> None:
        """Read the log up to a line that has these words."""
        assert self.process
        assert self.process.stderr
        for line in self.process.stderr:
            self.said.append(line)
            if words in line:
                return
        raise AssertionError(f"never said {words!r}: {''.join(self.said)}")

    def end(self) -> int:
        """Wait for the agent; return its exit status."""
        assert self.process
        _, rest = self.process.communicate(timeout=PATIENCE_SECONDS)
        self.said.append(rest)
        return self.process.returncode

    def run(self, *lanes: dict[str, Any], **changes: Any) -> dict[str, Any]:
        """Write, start, and expect a result of lane 0."""
        self.write(*lanes, **changes)
        self.start()
        assert self.end() == 0, "".join(self.said)
        return self.result()

    def result(self, lane: int = 0) -> dict[str, Any]:
        """Return a result; the store and the working folder must agree."""
        stored = (self.store / f"runs/run-0001/lane-{lane}/result.json").read_bytes()
        assert (self.folder / f"work/lane-{lane}/result.json").read_bytes() == stored
        document: dict[str, Any] = json.loads(stored)
        return document

    def heartbeat(self, lane: int = 0) -> dict[str, Any]:
        """Return the newest heartbeat."""
        document: dict[str, Any] = json.loads((self.store / f"runs/run-0001/lane-{lane}/heartbeat.json").read_bytes())
        return document

    def manifests(self, job: str = "job0") -> list[str]:
        """Keys, newest first."""
        folder = self.store / "jobs" / job / "manifests"
        names = sorted((path.name for path in folder.iterdir()), reverse=True) if folder.is_dir() else []
        return [f"jobs/{job}/manifests/{name}" for name in names]

    def manifest(self, key: str) -> dict[str, Any]:
        """Return a manifest's document."""
        document: dict[str, Any] = json.loads((self.store / key).read_bytes())
        return document

    def forget_run(self) -> None:
        """Keep the checkpoints, drop the run's documents, as the next attempt has its own."""
        shutil.rmtree(self.store / "runs", ignore_errors=True)
        self.said.clear()

    def until_beats(self, count: int, lane: int = 0) -> None:
        """Wait for ``count`` further heartbeats."""
        assert self.process
        wanted = self.heartbeat(lane)["seq"] + count
        while self.heartbeat(lane)["seq"] < wanted:
            assert self.process.poll() is None, self.end()
            select.select([], [], [], 0.01)

    def until_training(self, lane: int = 0) -> None:
        """Wait for a heartbeat with a step: the command runs and has its handlers."""
        assert self.process
        path = self.store / f"runs/run-0001/lane-{lane}/heartbeat.json"
        while not path.exists() or not self.heartbeat(lane)["step"]:
            assert self.process.poll() is None, self.end()
            # An os-level wait: nothing becomes readable, time passes.
            select.select([], [], [], 0.01)


@pytest.fixture
def payload(repository: Path) -> Path:
    return repository / "jobs" / "payload"


@pytest.fixture
def session(tmp_path: Path, payload: Path) -> Iterator[Session]:
    session = Session(tmp_path, payload)
    yield session
    if session.process:
        if session.process.poll() is None:
            session.process.kill()
        session.process.communicate()


@pytest.fixture
def alive(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A FIFO, and a wait until every process that holds its other end is gone."""
    path = tmp_path / "alive"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def wait_for_all_gone() -> None:
        assert select.select([reader], [], [], 30)[0], "somebody is still there"
        assert os.read(reader, 1) == b""

    yield path, wait_for_all_gone
    os.close(reader)
