"""A fault that shows with one run, job or pool stays with it: all others are settled and planned in the same cycle."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.window import HOUR
from jobs.spec import JobSpec
from platforms.base import Observed, SessionState, Unreachable
from scheduler.core.job import Active, Held, Queued
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.run import Ended, Running
from scheduler.core.snapshot import JobView, PoolView, Rate, Snapshot
from scheduler.service.cycle import cycle
from scheduler.service.facts import apply, observe, snapshot
from scheduler.service.faults.isolation import UNPLANNABLE, plan_around, poisoned_runs
from scheduler.service.launch import launch
from scheduler.service.outside.ports import Ports
from scheduler.service.requests import queue
from scheduler.service.upkeep import housekeeping
from scheduler.store import due, events, jobs, ledger, limits, runs
from scheduler.store.conditions import RUN_UNCLEAR
from scheduler.store.engine import Database
from scheduler.store.errors import DatabaseBusy, Fenced
from scheduler.views.needs import needs
from tests.lab.fake import FakeCloud, FakePlatform, Script

NOW = 1_795_000_000
GOOD, BAD = "uff-good-0001", "uff-bad-0001"


@pytest.fixture
def world(make_ports: Callable[..., Ports], database: Database) -> SimpleNamespace:
    """Two jobs, ``good`` and ``bad``, that train in sessions of their own; ``poison`` makes planning fail."""
    cloud, poison = FakeCloud(4, usual=Script(runs_seconds=None)), set[str]()

    def plan(found: Snapshot, incumbent: Plan | None) -> Plan:
        names = {*(job.name for job in found.jobs), *(view.pool.name for view in found.pools)}
        if poison & names:
            raise ZeroDivisionError(f"float division by zero in {len(names)} things")
        free = [job.name for job in found.jobs if job.running is None and job.blocked is None]
        open_pools = [view.pool.name for view in found.pools if view.closed_until is None]
        due = tuple(
            Placement(open_pools[0], found.now, found.now + HOUR, (PlannedLane(name, 1, 100),))
            for name in free
            if open_pools
        )
        return Plan(found.now, due, ())

    pools = {name: Pool(name, "fake", "CPU", sessions_max=4) for name in ("desk", "shed")}
    ports = make_ports(platforms=dict.fromkeys(pools, FakePlatform(cloud)), pools=pools, plan=plan)
    with database.write() as tx:
        for name in ("bad", "good"):
            jobs.add(tx, JobSpec(name, "manager", ("train",), 1_000, steps_per_hour=100.0), NOW)
    made = cycle.Cycle(ports)
    return SimpleNamespace(
        ports=ports, cloud=cloud, cycle=made, database=database, clock=ports.clock, poison=poison, log=ports.log
    )


def turn(world: SimpleNamespace, seconds: int = 60) -> None:
    world.clock.present += seconds
    world.cycle.run()


def state(world: SimpleNamespace, name: str) -> Any:
    with world.database.read() as tx:
        return (runs.get(tx, name) if name.startswith("uff-") else jobs.get(tx, name)).state


def kinds(world: SimpleNamespace, subject: str) -> list[str]:
    with world.database.read() as tx:
        return [event.kind for event in events.tail(tx, subject=subject)]


def fails_for(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, picks: Callable[..., bool]) -> None:
    """Let a function raise for what ``picks`` says."""
    real = getattr(owner, name)

    def broken(*arguments: Any, **named: Any) -> Any:
        if picks(*arguments):
            raise OverflowError("Python int too large")
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, broken)


@pytest.mark.parametrize(
    ("owner", "name", "picks"),
    [
        (cycle, "reconcile", lambda facts, now: any(fact.run.key == BAD for fact in facts)),
        (apply, "close_lane", lambda ports, tx, run, *_: run.key == BAD),
        (ledger, "append", lambda tx, entries: any(entry.run == BAD for entry in entries)),
        (observe, "_read_lanes", lambda ports, run, *_: run.key == BAD),
    ],
    ids=["deciding", "closing", "booking", "reading"],
)
def test_a_run_that_cannot_be_handled_is_told_once_and_keeps_no_other_from_its_end(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, picks: Callable[..., bool]
) -> None:
    """One raised in every cycle; after twenty the daemon gave up, and nothing settled for any job."""
    world.cycle.run()
    with monkeypatch.context() as broken:
        fails_for(broken, owner, name, picks)
        for key in (GOOD, BAD):
            world.cloud.cut(key, world.clock.present, "over")
        for _ in range(3):
            turn(world)
        assert isinstance(state(world, GOOD), Ended)
        assert isinstance(state(world, BAD), Running)
        assert kinds(world, BAD).count("run.poisoned") == 1
        assert "run.poisoned" not in kinds(world, GOOD)
        with world.database.read() as tx:
            assert "OverflowError" in poisoned_runs(tx)[BAD]
        world.cycle = cycle.Cycle(world.ports)  # a daemon that starts again knows it, and tells nothing twice
        turn(world)
        assert kinds(world, BAD).count("run.poisoned") == 1
    turn(world)
    assert isinstance(state(world, BAD), Ended)
    with world.database.read() as tx:
        assert not poisoned_runs(tx)


def test_a_run_is_settled_though_what_its_session_said_cannot_be_written(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cycle.run()
    fails_for(monkeypatch, runs, "note_heartbeat", lambda tx, key, *_: key == BAD)
    world.ports.artifacts.put(f"runs/{BAD}/lane-0/heartbeat.json", json.dumps({"format": 1, "step": 3}).encode())
    world.cloud.cut(BAD, world.clock.present, "over")
    turn(world)
    assert isinstance(state(world, BAD), Ended)
    assert isinstance(state(world, GOOD), Running)
    assert "run.poisoned" in kinds(world, BAD)


def test_a_session_that_its_place_cannot_tell_of_waits_for_a_person_and_the_others_go_on(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cycle.run()
    platform, asked = world.ports.platforms["desk"], {"silent": False}
    really = platform.find

    def find(keys: Sequence[str], now: int) -> dict[str, Observed]:
        if asked["silent"]:
            raise Unreachable("fake", "find", "no answer")
        found = dict(really(keys, now))
        return {
            key: replace(seen, state=SessionState.UNCLEAR, detail="its record is damaged")
            for key, seen in found.items()
            if key == BAD
        } | {key: seen for key, seen in found.items() if key != BAD}

    with monkeypatch.context() as damaged:
        damaged.setattr(platform, "find", find)
        for key in (GOOD, BAD):
            world.cloud.cut(key, world.clock.present, "over")
        for silent in (False, True, False):
            asked["silent"] = silent
            turn(world)
            assert not any(kind.startswith("run.un") for kind in kinds(world, BAD))  # an ordinary requeue looks so
        for silent in (True, False):
            asked["silent"] = silent
            turn(world, 300)
        assert isinstance(state(world, GOOD), Ended)
        assert isinstance(state(world, BAD), Running)
        assert [kind for kind in kinds(world, BAD) if kind.startswith("run.")].count("run.unclear") == 1
        assert "run.poisoned" not in kinds(world, BAD)
        assert "run.clear" not in kinds(world, BAD)  # silence in between is no news
        with world.database.read() as tx:
            assert poisoned_runs(tx, RUN_UNCLEAR) == {BAD: "its record is damaged"}
            found = needs(tx, world.ports.pools, 0, world.clock.present)
        assert [(need.what, need.why) for need in found if need.subject == BAD] == [
            ("session not known", "its record is damaged")
        ]
        assert not [need for need in found if need.subject in world.ports.pools]
    turn(world)
    assert isinstance(state(world, BAD), Ended)


@pytest.mark.parametrize("error", [DatabaseBusy("database is locked", "here", "busy", "wait"), Fenced(1)])
def test_what_the_database_raises_is_no_fault_of_a_run(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    world.cycle.run()

    def broken(*_: Any) -> None:
        raise error

    monkeypatch.setattr(apply, "close_lane", broken)
    world.cloud.cut(BAD, world.clock.present, "over")
    with pytest.raises(type(error)):
        turn(world)
    assert "run.poisoned" not in kinds(world, BAD)


def test_a_job_that_makes_planning_fail_is_held_by_name_and_all_others_are_planned(world: SimpleNamespace) -> None:
    world.poison.add("bad")
    world.cycle.run()
    held = state(world, "bad")
    assert isinstance(held, Held)
    assert (held.by, held.why.startswith(UNPLANNABLE)) == ("the scheduler", True)
    assert "ZeroDivisionError" in held.why
    assert isinstance(state(world, "good"), Active)
    for _ in range(3):  # it stays set aside, also for a daemon that starts again
        turn(world)
    world.cycle = cycle.Cycle(world.ports)
    turn(world, 7 * HOUR)
    assert world.log.said.count("job.poisoned") == 1
    world.poison.clear()
    queue.release(world.database, "bad", NOW, "ann")
    turn(world)
    assert isinstance(state(world, "bad"), Active)


def test_a_job_that_trains_goes_on_though_no_plan_can_be_made_with_it(world: SimpleNamespace) -> None:
    world.cycle.run()
    world.poison.add("bad")
    for _ in range(3):
        turn(world, 7 * HOUR if _ == 0 else 60)
    assert kinds(world, "bad").count("job.poisoned") <= 1
    assert world.log.said.count("job.poisoned") == 1


def test_a_pool_that_makes_planning_fail_is_closed_and_the_others_are_used(world: SimpleNamespace) -> None:
    world.poison.add("desk")
    world.cycle.run()
    with world.database.read() as tx:
        until, why = limits.closures(tx)["desk"]
        assert (until, why.startswith(UNPLANNABLE)) == (None, True)
        assert {run.pool for run in runs.live(tx)} == {"shed"}
    assert all(isinstance(state(world, name), Active) for name in ("good", "bad"))


def test_a_job_that_cannot_even_be_looked_at_is_set_aside(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_for(monkeypatch, snapshot, "job_view", lambda record, *_: record.spec.name == "bad")
    world.cycle.run()
    turn(world)
    assert isinstance(state(world, "bad"), Held)
    assert isinstance(state(world, "good"), Active)


def test_what_nobody_can_be_blamed_for_is_raised(world: SimpleNamespace) -> None:
    """The daemon counts such crashes, and gives up after twenty in a row."""
    world.ports = replace(world.ports, plan=lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cycle.Cycle(world.ports).run()
    assert all(isinstance(state(world, name), Queued) for name in ("good", "bad"))


@pytest.mark.parametrize("step", ["_reserve_one", "launch_request"])
def test_a_job_that_cannot_be_launched_waits_for_a_person(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def picks(*arguments: Any) -> bool:
        return any(
            "bad" in {planned_lane.job for planned_lane in getattr(each, "lanes", ())} for each in arguments[2:3]
        ) or (step == "launch_request" and arguments[1].key == BAD)

    fails_for(monkeypatch, launch, step, picks)
    world.cycle.run()
    held = state(world, "bad")
    assert isinstance(held, Held)
    assert held.by == "the scheduler"
    assert isinstance(state(world, "good"), Active)


def test_an_adapter_that_stumbles_closes_its_pool_until_it_answers(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cycle.run()
    with monkeypatch.context() as broken:
        fails_for(broken, world.ports.platforms["desk"], "find", lambda keys, now: True)
        turn(world)
        turn(world)
        with world.database.read() as tx:
            assert "its adapter raised" in limits.closures(tx)["desk"][1]
        assert isinstance(state(world, GOOD), Running)
    turn(world)
    with world.database.read() as tx:
        assert "desk" not in limits.closures(tx)


def test_one_duty_that_fails_keeps_no_other_from_being_done(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(ports: Any, now: int) -> None:
        raise TypeError("odd")

    first, *others = housekeeping._TASKS
    monkeypatch.setitem(housekeeping._TASKS, first, (broken, HOUR))
    housekeeping.run_due(world.ports, NOW)
    with world.database.read() as tx:
        planned = due.next_due(tx)
    assert first not in planned
    assert set(others) <= set(planned)


@pytest.mark.parametrize("culprits", [{"j3"}, {"j0"}, {"j6"}, {"j1", "j5"}, {"p1"}, {"p0", "j4"}, set()])
def test_culprits_are_found_by_halving(culprits: set[str]) -> None:
    tried = 0

    def make(found: Snapshot) -> Plan:
        nonlocal tried
        tried += 1
        if culprits & {*(view.name for view in found.jobs), *(view.pool.name for view in found.pools)}:
            raise OverflowError("cannot convert float infinity to integer")
        return Plan(NOW, (), ())

    found = Snapshot(
        NOW,
        tuple(JobView(f"j{number}", 1.0, 10, 0, None, {"p0": Rate(1.0)}, {}, {}) for number in range(7)),  # type: ignore[arg-type]
        tuple(PoolView(Pool(f"p{number}", "fake", "CPU")) for number in range(3)),
    )
    _, left_out = plan_around(make, found)
    assert {*left_out.jobs, *left_out.pools} == culprits
    assert tried <= 1 + 14 * len(culprits)
