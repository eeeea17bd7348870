"""kill -9 of the real daemon inside evaluate, verdict, promote and take-back: one version, one verdict, one word each.

The daemon is a process of its own that kills itself at a named point, which may lie in the middle of a transaction.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.spec import Evaluation, Input, JobSpec, QualityGate
from platforms.artifacts.directory import DirectoryStore
from scheduler.clock import real_now
from scheduler.service.requests.stored import take_input
from scheduler.store import evaluations, events, jobs, versions
from scheduler.store.engine import Database, open_database
from scheduler.store.verify import verify
from tests.lab.crashes.processes import kill, working_for
from tests.lab.patience import until
from tests.lab.trained_model import SCORE, TRAIN

NOW = 1_790_000_000
SETTINGS = """
state_dir = "{home}/state"
models = []

[clock]
epoch = 1790000000.0
origin = {origin}
scale = 60.0

[daemon]
lease = "3s"

[[pools]]
name = "desk"
platform = "local"
"""
# Starts the daemon; where the function that is named returns for the first time, the process is gone.
MORTAL = """
import importlib, os, signal, sys
module, name = sys.argv.pop(1).rsplit(".", 1)
place = importlib.import_module(module)
work = getattr(place, name)
def last(*words, **more):
    found = work(*words, **more)
    os.kill(os.getpid(), signal.SIGKILL)
    return found
setattr(place, name, last)
from scheduler.cli.main import run
sys.exit(run())
"""
JUDGED = (
    "scheduler.store.versions.add",  # the version is written, and not committed
    "scheduler.store.evaluations.begin",  # likewise the job and the evaluation
    "scheduler.service.versions.model_sync._create_version",  # both are committed
    "scheduler.service.versions.model_sync.scores_of",
    "scheduler.store.evaluations.end",
    "scheduler.store.evaluations.add_verdict",  # the verdict is written, and not committed
    "scheduler.store.versions.note_promotion",
    "scheduler.service.versions.model_sync._write",
)
TAKEN_BACK = (
    "scheduler.service.versions.model_sync.read_watch",
    "scheduler.store.versions.note_promotion",
    "scheduler.service.versions.model_sync.roll_back_by_votes",
)
COMMITTED = "scheduler.service.versions.model_sync.judge_and_store"
SHORT = ("scheduler.store.evaluations.begin", "scheduler.store.evaluations.add_verdict")


class House:
    """A real daemon that trains, evaluates and judges one model, whose users vote."""

    def __init__(self, home: Path) -> None:
        self.home, self.votes = home, home / "votes.jsonl"
        self.votes.touch()
        (home / "state").mkdir(mode=0o700)
        (home / "config.toml").write_text(SETTINGS.format(home=home, origin=real_now()))
        self.database: Database = open_database(f"sqlite:///{home}/state/scheduler.db", create=True)
        self._daemon: subprocess.Popen[bytes] | None = None
        items = home / "held-out.jsonl"
        items.write_text("".join(json.dumps({"id": f"item-{number}"}) + "\n" for number in range(40)))
        store = DirectoryStore(home / "state" / "artifacts")
        wanted = Evaluation(
            ("{python}", "-c", SCORE),
            take_input(self.database, store, Input("set", str(items)), NOW, print),
            votes=str(self.votes),
        )
        spec = JobSpec(
            "ufm",
            "manager",
            ("{python}", "-c", TRAIN),
            100,
            1_000.0,
            environment={"SKILL": "0.95"},
            evaluation=wanted,
            gates=(QualityGate("atomicity", "threshold", minimum=0.9),),
        )
        with self.database.write() as tx:
            jobs.add(tx, spec, NOW)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a daemon: ``-m scheduler``, or one that ends where a name is given."""
        how = ("-c", MORTAL, *words) if words else ("-m", "scheduler")
        command = [sys.executable, *how, "--config", str(self.home / "config.toml"), "daemon"]
        with (self.home / "daemon.log").open("ab") as log:
            self._daemon = subprocess.Popen(command, stderr=log, stdout=log, cwd=self.home)
        return self._daemon

    def dies_at(self, point: str) -> None:
        """Let a daemon run until it comes to a point, where it is killed."""
        mortal = self.start(point)
        until(lambda: mortal.poll() is not None, f"the end at {point}")
        assert mortal.returncode == -signal.SIGKILL, (self.home / "daemon.log").read_text()[-3_000:]

    def ask(self, question: Any) -> Any:
        """Return what a question about the books comes to."""
        with self.database.read() as tx:
            return question(tx)

    def moves(self) -> list[str]:
        """Return what was put in force and taken back, newest first."""
        return [move.kind for move in self.ask(lambda tx: versions.promotions_of(tx, "ufm"))]

    def close(self) -> None:
        """End everything."""
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()
        for pid in working_for(self.home):
            kill(pid)
        self.database.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    found = House(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("judged", "taken_back"),
    [(SHORT, TAKEN_BACK[1:2]), pytest.param((*JUDGED, COMMITTED), TAKEN_BACK, marks=pytest.mark.nightly)],
    ids=["two points", "every point"],
)
def test_a_daemon_that_is_killed_anywhere_on_the_way_judges_once_and_takes_back_once(
    house: House, judged: tuple[str, ...], taken_back: tuple[str, ...]
) -> None:
    for point in judged:
        house.dies_at(point)
    daemon = house.start()
    until(lambda: house.moves() == ["promote"], "the first version in force")
    version = house.ask(lambda tx: versions.get(tx, "ufm", 1))
    assert version.state == "accepted"
    assert [found.number for found in house.ask(versions.everything)] == [1]
    assert [found.state for found in house.ask(lambda tx: evaluations.of_version(tx, version))] == ["scored"]
    assert [said.verdict for said in house.ask(lambda tx: evaluations.verdicts_of(tx, version))] == ["accepted"]
    assert [record.spec.name for record in house.ask(jobs.everything)] == ["ufm", "ufm-eval-1"]
    daemon.kill()
    daemon.wait()
    with house.votes.open("a") as stream:
        for number in range(60):
            stream.write(json.dumps({"version": "ufm@1", "cluster": f"user-{number}", "worse": True}) + "\n")
    for point in taken_back:
        house.dies_at(point)
    house.start()
    until(lambda: house.moves() == ["rollback", "promote"], "the version that was voted out")
    assert house.ask(lambda tx: versions.get(tx, "ufm", 1)).state == "rejected"
    assert len(house.ask(lambda tx: events.tail(tx, kinds={"watch.alarm"}))) == 1
    assert len(house.ask(lambda tx: events.tail(tx, kinds={"version.judged"}))) == 1
    assert verify(house.database) == []
