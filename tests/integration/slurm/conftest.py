"""A real Slurm, with an agent that says hello and lasts until it is asked to leave."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from platforms.base import LaunchRequest, Observed, Platform, SessionState
from platforms.registry import PlatformContext, load
from scheduler.clock import real_now
from tests.lab.patience import until, until_state
from tests.lab.slurm import SlurmLab, slurm_lab

AGENT = """
import json, os, signal, sys
with open(sys.argv[1]) as stream:
    launch = json.load(stream)
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(0)))
print("hello", os.environ.get("CUDA_VISIBLE_DEVICES"), [lane["devices"] for lane in launch["lanes"]], flush=True)
signal.pause()
"""


@dataclass
class World:
    """One pool on the cluster. Every adapter is a new one, as of a restarted daemon."""

    folder: Path
    lab: SlurmLab
    options: dict[str, str] = field(default_factory=dict)
    sessions_max: int = 8

    def adapter(self, **options: str) -> Platform:
        """A new adapter with further options."""
        context = PlatformContext(
            self.folder / "state", sys.executable, self.folder / "bundle", sessions_max=self.sessions_max
        )
        usual = {"slurm_conf": str(self.lab.conf), "command_seconds": "60"}
        return load("slurm", {**usual, **self.options, **options}, context)

    def request(self, key: str, *, seconds: int = 3600, devices: int = 1, lanes: Any = ()) -> LaunchRequest:
        """A session that lasts."""
        launch = {"format": 1, "run": key, "lanes": list(lanes)}
        return LaunchRequest(key, "pool", devices, int(real_now()) + seconds, launch, "", {})

    def launch(self, key: str, *, adapter: Platform | None = None, **asked: Any) -> Observed:
        """Launch a session."""
        return (adapter or self.adapter()).launch(self.request(key, **asked), int(real_now()))

    def find(self, key: str, later: int = 0) -> Observed | None:
        """Look at a session, as if ``later`` seconds had passed."""
        return self.adapter().find([key], int(real_now()) + later).get(key)

    def until(self, key: str, *states: SessionState, later: int = 0) -> Observed:
        """Wait for a state."""
        return until_state(lambda: self.find(key, later), *states)

    def output(self, key: str) -> str:
        """What the session printed."""
        return b"".join(self.adapter().logs(key, 0, 1 << 20)).decode()

    def running(self, key: str, **asked: Any) -> Observed:
        """Launch a session and wait until it has said hello."""
        self.launch(key, **asked)
        self.until(key, SessionState.RUNNING)
        until(lambda: "hello" in self.output(key), "its hello")
        found = self.find(key)
        assert found is not None
        return found

    def jobs(self) -> list[tuple[str, str]]:
        """The names and states of the pool's jobs, as Slurm has them."""
        return self.lab.jobs(self.folder)

    def admin(self, *words: str) -> str:
        """Do what an administrator does."""
        return self.lab.say("scontrol", *words)


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    """The cluster that the tests of one file share."""
    with slurm_lab() as made:
        yield made


@pytest.fixture
def world(tmp_path: Path, lab: SlurmLab) -> Iterator[World]:
    """An empty pool on an empty cluster."""
    (tmp_path / "bundle" / "payload").mkdir(parents=True)
    (tmp_path / "bundle" / "payload" / "agent.py").write_text(AGENT)
    yield World(tmp_path, lab)
    lab.clear()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose programs are found before those of Slurm."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder
