"""Each step of the cycle that is about one run: whatever it raises, the other runs are settled and planning goes on.

The steps are not listed by hand: a cycle is watched, and every function of the scheduler that is handed the victim is a
step. Then each of them raises once, in a world of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import extract_tb
from types import CodeType, FrameType
from typing import Any

import pytest

import scheduler
from jobs.lane_report import LaneReport
from jobs.nouns.pool import Pool
from jobs.nouns.window import HOUR
from jobs.spec import JobSpec
from platforms.artifacts.directory import DirectoryStore
from platforms.base import LaunchRequest
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.run import Ended, Lane, Outcome, Run
from scheduler.core.snapshot import Snapshot
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.outside.ports import Policy, Ports
from scheduler.service.requests import queue
from scheduler.store import jobs, lease, runs, watched
from scheduler.store.engine import Database
from tests.integration.conftest import AtOnce, Journal
from tests.lab.clocks import HandClock
from tests.lab.databases import new_database
from tests.lab.fake import FakeCloud, FakePlatform, FakeSession, Script

GOOD, BAD, FRESH = "uff-good-0001", "uff-bad-0001", "uff-fresh-0001"
_ROOMS = tuple(str(Path(scheduler.__file__).parent / room) + "/" for room in ("service", "core"))
_PART_OF_A_STEP = ("<", "isolated", "_ending", "_flagging")  # what isolates, and what only hands on to it
_STEPS_MIN = 7  # functions that one scene hands the victim to


@dataclass
class World:
    """Two runs that are alike, ``good`` and ``bad``."""

    ports: Ports
    clock: HandClock
    cloud: FakeCloud
    cycle: Cycle

    def turn(self) -> None:
        """Let a minute pass and run a cycle."""
        self.clock.present += 60
        self.cycle.run()

    def state(self, key: str) -> Any:
        """Return the state of a run."""
        with self.ports.database.read() as tx:
            return runs.get(tx, key).state

    def is_known(self, key: str) -> bool:
        """Tell whether a run was launched."""
        with self.ports.database.read() as tx:
            return key in {run.key for run in runs.live(tx)}

    def add(self, *names: str) -> None:
        """Add jobs to the queue."""
        with self.ports.write() as tx:
            for name in names:
                jobs.add(tx, JobSpec(name, "manager", ("train",), 1_000, steps_per_hour=100.0), self.clock.present)

    def says(self, name: str, key: str, **said: Any) -> None:
        """Let a session write a report."""
        document = LaneReport(key, 0, key.split("-")[1], at=self.clock.present, **said).document()
        self.ports.artifacts.put(f"runs/{key}/lane-0/{name}.json", json.dumps(document).encode())


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[[], World]]:
    """Makes worlds, each with a database of its own."""
    opened: list[Database] = []

    def plan(found: Snapshot, _: Plan | None) -> Plan:
        free = [job.name for job in found.jobs if job.running is None and job.blocked is None]
        pool = min((view.pool.name for view in found.pools if view.closed_until is None), default="")
        lanes = {name: (PlannedLane(name, 1, 100),) for name in free if pool}
        return Plan(found.now, tuple(Placement(pool, found.now, found.now + HOUR, one) for one in lanes.values()), ())

    def make() -> World:
        folder = tmp_path / f"world-{len(opened)}"
        database = new_database(folder / "scheduler.db")
        opened.append(database)
        held = lease.acquire(database, "test", 10**6)
        assert held is not None
        clock, cloud = HandClock(), FakeCloud(9, usual=Script(runs_seconds=None))
        platform = FakePlatform(cloud)
        platform.capabilities = replace(platform.capabilities, takes_orders=True)
        ports = Ports(
            database=database,
            artifacts=DirectoryStore(folder / "artifacts"),
            platforms=dict.fromkeys(("desk", "shed"), platform),
            pools={name: Pool(name, "fake", "CPU", sessions_max=9) for name in ("desk", "shed")},
            clock=clock,
            policy=Policy(),
            plan=plan,
            data_prefix=lambda job: "",
            bundle="",
            calls=AtOnce(),
            log=Journal(),
            epoch=held.epoch,
        )
        return World(ports, clock, cloud, Cycle(ports))

    yield make
    for database in opened:
        database.close()


def _launched(world: World) -> None:
    world.add("good", "bad")
    world.cycle.run()


def _ends(world: World) -> None:
    """Both sessions end, with a last word."""
    _launched(world)
    for key in (GOOD, BAD):
        world.says("result", key, outcome="yielded", phase="ended", step=3)
        world.cloud.cut(key, world.clock.present + 30, "over")


def _dies(world: World) -> None:
    """Both sessions end without a word, and one of them has reported."""
    _launched(world)
    for key in (GOOD, BAD):
        world.says("heartbeat", key, phase="training", step=3, steps_per_second=1.0, checkpoint_seconds=5.0)
        world.turn()
        world.cloud.cut(key, world.clock.present + 30, "node failed")


def _is_asked_to_stop(world: World) -> None:
    """One is held by a person while the other ends."""
    _launched(world)
    world.says("heartbeat", BAD, phase="training", step=3, command_at=world.clock.present)
    queue.hold(world.ports.database, "bad", "wrong data", world.clock.present, "root")
    world.cloud.cut(GOOD, world.clock.present + 30, "over")


def _waits_in_a_queue(world: World) -> None:
    """One waits in its platform's queue while the other ends."""
    world.add("good")
    world.cycle.run()
    world.cloud.scripts.append(Script(queued_seconds=600, queue_why="Priority"))
    world.add("bad")
    world.turn()
    world.cloud.cut(GOOD, world.clock.present + 30, "over")


def _vanished(world: World) -> None:
    """One is gone from its platform long after its deadline, the other ends."""
    _launched(world)
    world.clock.present += 30 * HOUR
    del world.cloud.sessions[BAD]


def _overstays(world: World) -> None:
    """One is past its deadline and must be ended from outside, the other ends."""
    _launched(world)
    world.cloud.sessions[BAD] = _endless(world.cloud.sessions[BAD].request, world.clock.present)
    world.cycle.run()
    world.cloud.cut(GOOD, world.clock.present + 30, "over")
    world.clock.present += 3 * HOUR


def _endless(request: LaunchRequest, now: int) -> FakeSession:
    return FakeSession(replace(request, deadline=request.deadline + 10**6), Script(runs_seconds=None), now, 10**6)


def _comes_late(world: World) -> None:
    """One was given up and runs, the other ends."""
    world.add("good")
    world.cycle.run()
    now = world.clock.present
    world.cloud.sessions[BAD] = _endless(replace(world.cloud.sessions[GOOD].request, key=BAD), now)
    with world.ports.write() as tx:
        jobs.add(tx, JobSpec("bad", "manager", ("train",), 1_000, steps_per_hour=100.0), now)
        lanes = (Lane(0, "bad", jobs.note_launch(tx, "bad", "desk"), (0,), None),)
        runs.insert(tx, Run(BAD, "desk", lanes, now, now, now, Ended(Outcome.REJECTED, now, None)), now)
        watched.add(tx, BAD, now + HOUR, None)
    world.cloud.cut(GOOD, now + 30, "over")


SCENES = (_ends, _dies, _is_asked_to_stop, _waits_in_a_queue, _vanished, _overstays, _comes_late)


@contextmanager
def _watching(on_call: Callable[[CodeType], None]) -> Iterator[None]:
    """Report each function of the scheduler that is handed the victim while the body runs."""

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        ours = code.co_filename.startswith(_ROOMS) and not code.co_name.startswith(_PART_OF_A_STEP)
        if event == "call" and ours and "<locals>" not in code.co_qualname:
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if any(_is_victim(frame.f_locals.get(name)) for name in names):
                on_call(code)

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def _is_victim(value: object) -> bool:
    if isinstance(value, str):
        return value == BAD
    about = getattr(value, "run", value)
    return isinstance(about, Run) and about.key == BAD


def _name(code: CodeType) -> str:
    return f"{code.co_filename.removeprefix(str(Path(scheduler.__file__).parent))[1:-3]}:{code.co_qualname}"


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__.strip("_"))
def test_a_fault_in_any_step_about_one_run_keeps_nothing_else_from_being_done(
    make_world: Callable[[], World], scene: Callable[[World], None]
) -> None:
    steps: dict[str, CodeType] = {}
    world = make_world()
    scene(world)
    world.add("fresh")
    with _watching(lambda code: steps.update({_name(code): code})):
        world.turn()
    assert len(steps) > _STEPS_MIN
    missed = [f"{name}: {why}" for name, code in steps.items() if (why := _missed(make_world(), scene, code))]
    assert not missed, "\n".join(missed)


def _missed(world: World, scene: Callable[[World], None], code: CodeType) -> str:
    """Return what a cycle leaves undone in which a step raises once; "" where nothing is."""
    scene(world)
    world.add("fresh")
    struck = False

    def strike(called: CodeType) -> None:
        nonlocal struck
        if called is code and not struck:
            struck = True
            raise ZeroDivisionError("a fault of one run")

    try:
        with _watching(strike):
            world.turn()
    except ZeroDivisionError as error:
        return " < ".join(frame.name for frame in reversed(extract_tb(error.__traceback__)))
    if not struck:
        return "it was not called again"
    if not isinstance(world.state(GOOD), Ended):
        return "the other run was not settled"
    return "" if world.is_known(FRESH) else "nothing was planned"
