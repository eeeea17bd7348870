"""Nothing that was published is lost when a lane ends: neither by a last word, nor by silence."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from jobs.payload.store.manifest import blob_key, manifest_key
from platforms.artifacts.base import StoreUnreachable
from platforms.base import Observed, SessionState
from scheduler.core import job as arrows
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.run import Lane, Run, Running
from scheduler.store import checkpoints, jobs, ledger, runs, watched
from tests.lab.simulation.blobs import SimulatedBlobs
from tests.lab.simulation.place import SimulatedPlatform
from tests.lab.simulation.scenario import steady_scenario
from tests.lab.simulation.simulation import Simulation

if TYPE_CHECKING:
    from scheduler.service.cycle.cycle import Cycle
    from tests.lab.simulation.database import Laboratory

RUN, DIGEST = "uff-main-0002", "0" * 64
SEAT = Lane(0, "main", 2, (0,), 40)
LAST_STEP = 90
NO_ANSWER = StoreUnreachable("read", "jobs/main", "no answer")


class Scene:
    """Job ``main`` in its second run, which began at ``start``, on a platform that shows ``state``."""

    def __init__(self, laboratory: Laboratory) -> None:
        self.simulation = Simulation(laboratory, steady_scenario())
        self.simulation.people.fill_queue()
        self.cycle: Cycle = self.simulation.boot()
        self.start = start = self.simulation.world.now
        self.state: SessionState | None = SessionState.RUNNING
        run = Run(RUN, "weekly", (SEAT,), start, start + 5_000, start + 5_100, Running("r", start))
        assert self.simulation.ports is not None
        with self.simulation.ports.write() as tx:
            runs.insert(tx, run, start)
            ledger.append(tx, [LedgerEntry(EntryKind.HOLD, "weekly", RUN, start, start + 5_100, start)])
            while jobs.note_launch(tx, "main", "weekly") < SEAT.attempt:
                pass  # manifests are believed of attempts only that there were
            queued = jobs.get(tx, "main").state
            jobs.change_state(tx, "main", queued, arrows.activate(queued, RUN, start), "activate", start, run=RUN)

    def publish(self, step: int, attempt: int) -> str:
        """Put a whole checkpoint into the store."""
        key = manifest_key("main", step, attempt)
        manifest = {
            "format": 1,
            "job": "main",
            "step": step,
            "attempt": attempt,
            "run": f"uff-main-{attempt:04d}",
            "lane": 0,
            "parent": None,
            "created_at": self.start,
            "trained_seconds": 60,
            "metrics": {},
            "components": [{"name": "model.bin", "sha256": DIGEST, "bytes": 1}],
        }
        self.simulation.world.shelves.put(blob_key("main", DIGEST), b"x")
        self.simulation.world.shelves.put(key, json.dumps(manifest).encode())
        return key

    def report(self, name: str, **said: object) -> None:
        """Let the lane write a heartbeat or its result."""
        report = {"format": 1, "run": RUN, "lane": 0, "job": "main", "at": self.start + 60, **said}
        self.simulation.world.shelves.put(f"runs/{RUN}/lane-0/{name}.json", json.dumps(report).encode())

    def leave(self, step: int, **said: object) -> None:
        """Let the lane say its last word."""
        for name in ("heartbeat", "result"):
            self.report(name, phase="ended", outcome="yielded", checkpoint_step=step, **said)

    def settle(self, seconds: int = 60) -> None:
        """Let time pass, then the daemon look at what happened."""
        world = self.simulation.world
        world.agenda.advance(world.now + seconds)
        shown = {} if self.state is None else {RUN: Observed(RUN, self.state, "r", self.start)}
        with patch.object(SimulatedPlatform, "find", return_value=shown):
            self.cycle._settle()

    def known(self) -> list[int]:
        """Return the steps from which the next session could start, the one that it is told first in front."""
        with self.simulation.laboratory.people.read() as tx:
            return [found.manifest.step for found in checkpoints.newest(tx, "main")]

    def has_seat(self) -> bool:
        """Whether the job still is where it was."""
        with self.simulation.laboratory.people.read() as tx:
            return any(lane.outcome is None for run in runs.live(tx) for lane in run.lanes)


@pytest.fixture
def scene(laboratory: Laboratory) -> Scene:
    """The job in its lane; steps 40 and 80 are known."""
    made = Scene(laboratory)
    for step in (40, 80):
        made.publish(step, 1)
    made.report("heartbeat", phase="training", checkpoint_step=80)
    made.settle()
    assert made.known() == [80, 40]
    return made


def test_a_session_that_passed_over_a_damaged_checkpoint_does_not_lose_what_it_made(scene: Scene) -> None:
    # Seeds 2000326 and 2002645: it began at 40 because 80 was damaged, told so with its last word only, and its own
    # step 60, below the damaged one, was never looked for.
    scene.publish(60, 2)
    damaged = {"manifest": manifest_key("main", 80, 1), "why": "a component does not have its digest"}
    scene.leave(60, bad_manifests=[damaged])
    scene.settle()
    assert not scene.has_seat()
    assert scene.known() == [60, 40]


def test_a_last_word_is_not_believed_before_every_checkpoint_has_been_read(scene: Scene) -> None:
    # Seeds 2009669 and 2010079: step 85 could not be read, 90 could; then no step above 90 was claimed, nothing was
    # looked for, and when 90 proved to be damaged, training fell back to 80.
    unreadable = scene.publish(85, 2)
    scene.publish(LAST_STEP, 2)
    scene.leave(LAST_STEP)
    real = SimulatedBlobs.read

    def read(store: SimulatedBlobs, key: str, limit_bytes: int) -> bytes:
        if key == unreadable:
            raise NO_ANSWER
        return real(store, key, limit_bytes)

    with patch.object(SimulatedBlobs, "read", read):
        for _ in range(2):
            scene.settle()
            assert scene.known() == [LAST_STEP, 80, 40]
            assert scene.has_seat()
    scene.settle()
    assert not scene.has_seat()
    assert scene.known() == [LAST_STEP, 85, 80, 40]


def test_a_session_that_vanished_does_not_take_its_last_checkpoint_along(scene: Scene) -> None:
    # It published, and its machine was gone before it could say so; nobody claims step 90.
    scene.publish(LAST_STEP, 2)
    scene.state = None
    scene.settle(6_000)
    assert not scene.has_seat()
    assert scene.known() == [LAST_STEP, 80, 40]


def test_what_a_session_left_with_its_platform_is_known_when_it_is_shown_after_all(scene: Scene) -> None:
    # Given up as gone after its deadline, it is shown later, and only then its files can be brought home.
    scene.state = None
    scene.settle(6_000)
    assert not scene.has_seat()
    scene.state = SessionState.ENDED

    def collect(*_: object) -> None:
        scene.publish(LAST_STEP, 2)

    with (
        patch.object(SimulatedPlatform, "collect", collect),
        patch.object(SimulatedBlobs, "keys", side_effect=NO_ANSWER),
    ):
        scene.settle(700)
    assert scene.known() == [80, 40]
    scene.settle(700)
    assert scene.known() == [LAST_STEP, 80, 40]
    with scene.simulation.laboratory.people.read() as tx:
        assert watched.possible_charges(tx) == {}  # it is proven over, though it is listened to for some time yet
