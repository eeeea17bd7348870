"""Closed loop: the daemon plans again when something happened that the plan does not know, and only then."""

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import DAY, HOUR, Calendar
from jobs.spec import JobSpec
from scheduler.core.plan import Plan
from scheduler.core.quota import ObservedLimit
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.outside.ports import Ports
from scheduler.service.requests import queue
from scheduler.store import jobs, limits, rates, runs
from scheduler.store.engine import Database
from scheduler.views.needs import needs
from tests.lab.fake import FakeCloud, FakePlatform, Script
from tests.lab.planner.idle import idle

NOW = 1_795_000_000


@pytest.fixture
def world(make_ports: Callable[..., Ports], database: Database) -> SimpleNamespace:
    """One desk for one session of four hours a day, a job of five hours in the queue, and a planner that is watched."""
    cloud, seen = FakeCloud(), list[tuple[Any, Plan | None, Plan]]()
    planner = Planner(PlannerOptions(search_steps=0))

    def plan(snapshot: Any, incumbent: Plan | None) -> Plan:
        made = planner.plan(snapshot, incumbent)
        seen.append((snapshot, incumbent, made))
        return made

    quota = CalendarQuota("day", 4 * HOUR, Calendar("day"))
    ports = make_ports(
        platforms={"desk": FakePlatform(cloud)}, pools={"desk": Pool("desk", "fake", "CPU", (quota,))}, plan=plan
    )
    with database.write() as tx:
        jobs.add(tx, JobSpec("ufm", "manager", ("train",), target_step=500, steps_per_hour=100.0), NOW)
    return SimpleNamespace(
        ports=ports, cloud=cloud, clock=ports.clock, seen=seen, database=database, cycle=Cycle(ports), log=ports.log
    )


def planned(world: SimpleNamespace, after: int = 30) -> int:
    """Run a cycle some seconds later; return how many plans it made."""
    before = len(world.seen)
    world.clock.present += after
    world.cycle.run()
    return len(world.seen) - before


def settled(world: SimpleNamespace) -> None:
    """Run cycles until nothing is left to be planned anew."""
    for _ in range(10):
        if not planned(world):
            return
    pytest.fail("the daemon plans again and again though nothing happens")


def test_nothing_new_is_not_planned_again_for_hours(world: SimpleNamespace) -> None:
    world.cloud.scripts.append(Script(runs_seconds=None))
    settled(world)
    assert planned(world) == 0
    assert planned(world, after=3_600) == 0
    assert planned(world, after=6 * HOUR) == 1


def test_a_launch_that_goes_as_planned_is_no_reason_to_plan_again(world: SimpleNamespace) -> None:
    world.cloud.scripts.append(Script(runs_seconds=None))
    assert [planned(world), planned(world), planned(world)] == [1, 0, 0]
    assert len(world.cloud.sessions) == 1


def test_every_event_that_changes_what_is_known_is_planned_with(world: SimpleNamespace) -> None:
    """A job added, a weight changed, a quota observed to differ, a pool closed: each is in the next snapshot."""
    world.cloud.scripts.append(Script(runs_seconds=None))
    settled(world)
    queue_changes = (
        lambda: _write(
            world, lambda tx: jobs.add(tx, JobSpec("ucm", "manager", ("t",), target_step=9, steps_per_hour=9.0), NOW)
        ),
        lambda: queue.change(world.database, "ucm", world.clock.present, "ann", weight=7.0),
        lambda: _write(world, lambda tx: limits.observe(tx, "desk", _limit(world, 2 * HOUR))),
        lambda: _write(world, lambda tx: limits.close_pool(tx, "desk", None, "cleaned", world.clock.present)),
    )
    for change in queue_changes:
        change()
        assert planned(world) == 1
        settled(world)
    _write(world, lambda tx: limits.observe(tx, "desk", _limit(world, 2 * HOUR)))
    assert planned(world) == 0  # the same again is no news
    snapshot = world.seen[-1][0]
    assert {view.name: view.weight for view in snapshot.jobs} == {"ufm": 1.0, "ucm": 7.0}
    assert [seen.limit for seen in snapshot.pools[0].observed] == [2 * HOUR]
    assert snapshot.pools[0].closed_why == "cleaned"


def test_what_a_run_taught_is_in_the_next_plan(world: SimpleNamespace) -> None:
    """A session ends and a rate was measured: the plan that follows counts with it."""
    world.cloud.scripts.append(Script(runs_seconds=600))
    settled(world)
    world.clock.present += 700
    rate = rates.RateRecord(0.05, 0.1, 3, 240, 30, job="ufm", pool="desk", at=NOW)
    _write(world, lambda tx: rates.put(tx, rate))
    for _ in range(10):
        planned(world, after=120)
        if world.seen[-1][0].jobs[0].running is None:
            break
    last = world.seen[-1][0].jobs[0]
    assert last.running is None
    assert (last.rates["desk"].steps_per_second, last.rates["desk"].samples) == (0.05, 3)


def test_a_daemon_that_starts_again_carries_on_the_plan_in_force(world: SimpleNamespace) -> None:
    world.cloud.scripts.append(Script(runs_seconds=None))
    settled(world)
    newest = world.seen[-1][2]
    world.cycle = Cycle(world.ports)
    assert planned(world) == 1
    _, incumbent, _ = world.seen[-1]
    assert incumbent is not None
    assert incumbent.digest == newest.digest


def test_a_warning_of_the_planner_is_in_the_log(world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "highspy", None)
    world.cloud.scripts.append(Script(runs_seconds=None))
    planned(world)
    assert any("plan.warning" in said and "highspy is not installed" in said for said in world.log.lines)


def _limit(world: SimpleNamespace, seconds: int) -> ObservedLimit:
    start = NOW // DAY * DAY
    return ObservedLimit("day", start, start + DAY, seconds, world.clock.present)


def _write(world: SimpleNamespace, change: Any) -> None:
    with world.database.write() as tx:
        change(tx)


def test_an_end_that_comes_early_is_planned_with_and_leaves_no_hole(
    make_ports: Callable[..., Ports], database: Database, hand_clock: Any
) -> None:
    """The job that is first on the desk fails and waits for its retry: the next one does not wait for it.

    The plan in force wanted the failed one to go on, and the other after it: it kept the desk empty until then, and
    said that its hours, at a price of 0.00, were worth more later.
    """
    cloud, plans, clock = FakeCloud(), list[Plan](), hand_clock
    planner = Planner(PlannerOptions(search_steps=0))

    def plan(snapshot: Any, incumbent: Plan | None) -> Plan:
        made = planner.plan(snapshot, incumbent)
        assert idle(snapshot, made) == []
        plans.append(made)
        return made

    ports = make_ports(platforms={"desk": FakePlatform(cloud)}, pools={"desk": Pool("desk", "fake", "CPU")}, plan=plan)
    ports = replace(ports, policy=replace(ports.policy, retry_base_seconds=4_000))
    with database.write() as tx:
        for name, hours in (("ufm", 9), ("ucm", 5)):
            jobs.add(tx, JobSpec(name, "manager", ("train",), target_step=100 * hours, steps_per_hour=100.0), NOW)
    cloud.scripts += [Script(runs_seconds=3_600), Script(runs_seconds=None)]
    cycle = Cycle(ports)
    for _ in range(200):
        cycle.run()
        clock.present += 30
        with database.read() as tx:
            live = runs.live(tx)
        if plans and live and live[0].lanes[0].job != first_of(plans[0]):
            break
        if live:  # it is lost as a session that trained is
            beat = json.dumps({"format": 1, "command_at": NOW})
            ports.artifacts.put(f"runs/{live[0].key}/lane-0/heartbeat.json", beat.encode())
    else:
        pytest.fail("the desk stayed empty")
    assert clock.present - NOW < 3_600 + 600
    assert all(getattr(found.reason, "price", None) != 0.0 for one in plans for found in one.deferrals)


def first_of(plan: Plan) -> str:
    return plan.placements[0].lanes[0].job


def run_jobs(world: SimpleNamespace) -> list[str]:
    """Return the jobs of all runs, oldest first."""
    with world.database.read() as tx:
        return [run.lanes[0].job for run in reversed(runs.recent(tx, 50))]


def test_a_plan_is_made_when_a_pause_ends_and_when_a_pool_opens(world: SimpleNamespace) -> None:
    """Nothing happens, and nothing that is planned is due: time alone lets a job start."""
    start = world.clock.present
    with world.database.write() as tx:
        state = jobs.get(tx, "ufm").state
        jobs.change_state(tx, "ufm", state, replace(state, retry_at=start + 1_200), "retry", NOW)
        limits.close_pool(tx, "desk", start + 2_400, "cleaned", NOW)
    settled(world)
    assert planned(world) == 0
    world.clock.present = start + 1_170
    assert planned(world) == 1
    settled(world)
    world.cloud.scripts.append(Script(runs_seconds=None))
    world.clock.present = start + 2_370
    assert planned(world) == 1
    assert len(world.cloud.sessions) == 1


def test_what_cannot_be_launched_lets_others_run_and_becomes_an_action_for_a_person(world: SimpleNamespace) -> None:
    made = iter([False] * 4)

    def data_prefix(job: str) -> str:
        if job == "ufm" and not next(made, True):
            raise FileNotFoundError("no sources")
        return f"data/{job}/"

    def wanted() -> list[str]:
        with world.database.read() as tx:
            found = needs(tx, world.ports.pools, 0, int(world.clock.present))
        return [need.subject for need in found if need.what == "job cannot be launched"]

    world.cycle = Cycle(replace(world.ports, data_prefix=data_prefix))
    with world.database.write() as tx:
        jobs.add(tx, JobSpec("ucm", "manager", ("t",), target_step=9, steps_per_hour=9.0, weight=0.1), NOW)
    planned(world)
    assert not world.cloud.sessions, "most preparations are through in a minute"
    assert wanted() == []
    world.cloud.scripts += [Script(runs_seconds=600), Script(runs_seconds=None)]
    planned(world, after=60)
    planned(world, after=1)
    assert run_jobs(world) == ["ucm"]
    assert wanted() == ["ufm"]
    queue.hold(world.database, "ucm", "it has had its turn", int(world.clock.present), "ann")
    for _ in range(20):
        planned(world, after=600)
    assert run_jobs(world)[-1] == "ufm"
    assert wanted() == []
