"""What sessions show of set-ups, waits and saves is planned with, and told to the next session."""

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota, MoneyQuota
from jobs.nouns.window import DAY, HOUR, Calendar, DailyHours
from jobs.spec import JobSpec
from scheduler.core.job import Queued
from scheduler.core.snapshot import JobView, PoolView, Snapshot
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.facts.overheads import Overheads
from scheduler.service.facts.snapshot import job_view, load_snapshot
from scheduler.service.outside.ports import Ports
from scheduler.store import jobs, rates, runs
from scheduler.store.engine import Database
from tests.lab.fake import FakeCloud, FakePlatform, Script

NOW = 1_795_000_000
DESK = Pool("desk", "fake", "CPU", session_cap_seconds=4 * HOUR, setup_seconds=600, start_delay_seconds=180)


@pytest.fixture
def world(make_ports: Callable[..., Ports], database: Database) -> SimpleNamespace:
    """One desk, sessions of at most four hours, a job of ten hours and a daemon that has launched its first session."""
    cloud, planner = FakeCloud(usual=Script(runs_seconds=None)), Planner(PlannerOptions(search_steps=0))
    ports = make_ports(platforms={"desk": FakePlatform(cloud)}, pools={"desk": DESK}, plan=planner.plan)
    with database.write() as tx:
        jobs.add(tx, spec("ufm"), NOW)
    cycle = Cycle(ports)
    cycle.run()
    assert list(cloud.sessions) == ["uff-ufm-0001"]
    return SimpleNamespace(ports=ports, cloud=cloud, clock=ports.clock, cycle=cycle, database=database)


def spec(name: str) -> JobSpec:
    return JobSpec(name, "manager", ("train",), 1_000, steps_per_hour=100.0, setup_seconds=60, checkpoint_seconds=10)


def view(world: SimpleNamespace, name: str = "ufm") -> JobView:
    """The job as the next plan sees it."""
    with world.database.read() as tx:
        snapshot = load_snapshot(tx, world.ports.pools, world.clock.present, 7 * 24 * HOUR)
    return next(found for found in snapshot.jobs if found.name == name)


def told(world: SimpleNamespace, document: str, after: int, **report: Any) -> None:
    """Let the newest session leave a document ``after`` seconds, and a cycle read it."""
    key = list(world.cloud.sessions)[-1]
    usual = {"started_at": NOW, "steps_per_second": None, "setup_seconds": None, "checkpoint_seconds": None}
    world.ports.artifacts.put(f"runs/{key}/lane-0/{document}.json", json.dumps({**usual, **report}).encode())
    world.clock.present += after
    world.cycle.run()


def result(world: SimpleNamespace, after: int, **report: Any) -> None:
    """Let the newest session end with a result."""
    key = list(world.cloud.sessions)[-1]
    world.cloud.cut(key, world.clock.present + after - 1, "exit code 0")
    told(world, "result", after, **{"outcome": "yielded", "ended_at": world.clock.present + after, **report})


def rate(world: SimpleNamespace, job: str = "ufm") -> rates.RateRecord:
    with world.database.read() as tx:
        found = rates.get(tx, job, "desk")
    assert found is not None
    return found


def test_what_was_declared_is_believed_until_something_is_seen(world: SimpleNamespace) -> None:
    """The wait for the start counts: the session's end does not move with it."""
    found = view(world)
    assert (found.setup_seconds, found.checkpoint_seconds) == ({"desk": 180 + 600 + 60}, {"desk": 10})
    assert (found.setup_sigma, found.checkpoint_sigma) == ({"desk": 0.3}, {"desk": 0.3})
    lane = world.cloud.sessions["uff-ufm-0001"].request.launch["lanes"][0]
    assert (lane["checkpoint_seconds"], lane["closing_seconds"]) == (10, 14)


def test_a_wait_for_the_start_is_planned_with(world: SimpleNamespace) -> None:
    result(world, HOUR, started_at=NOW + 900, setup_seconds=300, steps_per_second=0.03, checkpoint_seconds=40.0)
    found = view(world)
    assert (found.setup_seconds, found.checkpoint_seconds) == ({"desk": 1_200}, {"desk": 40})


def test_a_session_that_never_trained_makes_the_next_one_longer(world: SimpleNamespace) -> None:
    result(world, HOUR, started_at=NOW + 100)
    found = view(world)
    assert found.setup_seconds == {"desk": HOUR}
    assert found.rates["desk"].samples == 0
    result(world, 2 * HOUR, started_at=NOW + 100)
    assert view(world).setup_seconds["desk"] > HOUR


def test_a_session_that_hardly_trained_teaches_what_it_lost(world: SimpleNamespace) -> None:
    """Its first step was its last: no speed, but a set-up, and a save that was given up."""
    result(world, HOUR, started_at=NOW + 100, setup_seconds=2_900, checkpoint_seconds=500.0)
    found = view(world)
    assert (found.setup_seconds, found.checkpoint_seconds) == ({"desk": 3_000}, {"desk": 500})
    assert found.rates["desk"].samples == 0


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"quotas": (CalendarQuota("day", 4 * HOUR, Calendar("day")),), "overrun_seconds": 600},
        {"hours": (DailyHours("UTC", 22 * HOUR, 2 * HOUR),)},
        {"quotas": (MoneyQuota("money", 3_000_000, Calendar("day")),), "price_microdollars_per_hour": 1_000_000},
    ],
    ids=["cap", "quota", "opening", "money"],
)
@pytest.mark.parametrize("saving", [90.0, 9_000.0])
def test_set_ups_and_saves_that_hang_never_shut_a_pool(rules: dict[str, Any], saving: float) -> None:
    """As long as the pool allows is tried, whatever was seen."""
    pool = replace(DESK, **rules)
    hung = rates.RateRecord(0.03, 0.3, 4, 90_000, round(saving), 50_000, 1.5, 1.5, job="ufm", pool="desk", at=NOW)
    record = jobs.JobRecord(spec("ufm"), Queued(NOW), 0, 0, 0, None, None, NOW, 1)
    found = job_view(record, {"desk": pool}, Overheads({("ufm", "desk"): hung}), None)
    snapshot = Snapshot(NOW // DAY * DAY, (found,), (PoolView(pool),), DAY)
    placements = dispatch(snapshot).placements
    assert placements
    assert {planned_lane.job for placement in placements for planned_lane in placement.lanes} == {"ufm"}


def test_a_first_impression_gives_way_to_the_sessions_last_word(world: SimpleNamespace) -> None:
    """The first steps are slow, and were worth as much as all that followed."""
    told(world, "heartbeat", 600, seq=1, steps_per_second=0.001, setup_seconds=300)
    assert view(world).rates["desk"].samples == 0, "nothing is saved yet: it tells of warming up"
    told(world, "heartbeat", 600, seq=2, steps_per_second=0.02, setup_seconds=300, checkpoint_seconds=30.0)
    assert (rate(world).steps_per_second, rate(world).samples) == (0.02, 1)
    told(world, "heartbeat", 600, seq=3, steps_per_second=0.5, setup_seconds=300, checkpoint_seconds=30.0)
    assert (rate(world).steps_per_second, rate(world).samples) == (0.5, 1), "it was not as slow as that"
    result(world, HOUR, steps_per_second=0.03, setup_seconds=300, checkpoint_seconds=90.0)
    assert (rate(world).steps_per_second, rate(world).samples) == (0.03, 1)
    assert rate(world).checkpoint_seconds == 90


@pytest.mark.parametrize("end", [{}, {"outcome": "failed", "error_class": "no_checkpoint"}], ids=["at once", "late"])
def test_a_whole_job_that_was_cut_short_gets_all_its_time(world: SimpleNamespace, end: dict[str, str]) -> None:
    """What was expected of it by others like it was too little: its definition says how long it may take."""
    with world.database.write() as tx:
        jobs.change_spec(tx, "ufm", NOW, "test", whole=True, target_step=1, steps_per_hour=0.5)
        rates.put(tx, rates.RateRecord(1 / 600, 0.3, 1, 60, 10, job="ufm", pool="desk", at=NOW))
    assert view(world).rates["desk"].steps_per_second == 1 / 600
    result(world, HOUR, setup_seconds=60, **end)
    assert (rate(world).steps_per_second, rate(world).samples) == (0.0, 0)
    assert 1 / view(world).rates["desk"].steps_per_second == pytest.approx(2 * HOUR)


def test_a_speed_is_learned_again_from_a_heartbeat_only_if_it_surprises(world: SimpleNamespace) -> None:
    seen = [rates_after(world, speed, waited) for speed, waited in ((1.0, 59), (1.0, 60), (1.05, 60), (1.5, 60))]
    assert seen[0] is None
    assert seen[1] == seen[2]
    assert seen[3] != seen[2]


def test_a_run_is_shown_from_the_step_that_its_session_could_restore(world: SimpleNamespace) -> None:
    told(world, "heartbeat", 60, restored_step=7)
    with world.database.read() as tx:
        assert runs.get(tx, "uff-ufm-0001").lanes[0].restore_step == 7


def rates_after(world: SimpleNamespace, speed: float, trained: int) -> float | None:
    """Return the speed that is believed after a heartbeat of a session that has trained for so long."""
    at = world.clock.present + 100
    told(world, "heartbeat", 100, at=at, started_at=at - trained, setup_seconds=0, steps_per_second=speed)
    with world.database.read() as tx:
        found = rates.get(tx, "ufm", "desk")
    return None if found is None else found.steps_per_second


def test_a_job_that_is_new_on_a_pool_expects_what_others_lost_there(world: SimpleNamespace) -> None:
    """Its own declaration counts where that is more."""
    result(world, HOUR, started_at=NOW + 900, setup_seconds=3_000, steps_per_second=0.03, checkpoint_seconds=300.0)
    with world.database.write() as tx:
        jobs.add(tx, spec("ucm"), world.clock.present)
    found = view(world, "ucm")
    assert (found.setup_seconds, found.checkpoint_seconds) == ({"desk": 3_900}, {"desk": 300})
    assert found.rates["desk"].samples == 0
