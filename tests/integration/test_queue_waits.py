"""What a platform tells of its queue is planned with, told to people, and written down when it changes."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.window import DAY, HOUR
from jobs.spec import JobSpec
from platforms.base import InQueue, Observed, SessionState
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.facts.snapshot import load_snapshot
from scheduler.service.outside import border
from scheduler.service.outside.ports import Ports
from scheduler.store import events, jobs, queue_waits
from scheduler.store.engine import Database
from tests.lab.fake import FakeCloud, FakePlatform, Script

NOW = 1_795_000_000
WHY = "pending: Priority (other jobs come first)"
POOL = Pool("cluster", "fake", "CPU", session_cap_seconds=12 * HOUR, sessions_max=2, start_delay_seconds=180)


@pytest.fixture
def world(make_ports: Callable[..., Ports], database: Database) -> SimpleNamespace:
    """A pool whose first session waits three hours in the queue, and a second job that may run there."""
    cloud = FakeCloud(usual=Script(runs_seconds=None, queued_seconds=3 * HOUR, queue_why=WHY), sessions_max=2)
    ports = make_ports(
        platforms={"cluster": FakePlatform(cloud)},
        pools={"cluster": POOL},
        plan=Planner(PlannerOptions(search_steps=0)).plan,
    )
    with database.write() as tx:
        jobs.add(tx, JobSpec("ufm", "manager", ("train",), 5_000, steps_per_hour=100.0, setup_seconds=60), NOW)
    cycle = Cycle(ports)
    cycle.run()
    return SimpleNamespace(ports=ports, cloud=cloud, clock=ports.clock, cycle=cycle, database=database)


def setup_of(world: SimpleNamespace) -> int:
    with world.database.read() as tx:
        snapshot = load_snapshot(tx, world.ports.pools, world.clock.present, 7 * 24 * HOUR)
    return snapshot.jobs[0].setup_seconds["cluster"]


def told(world: SimpleNamespace) -> list[tuple[str, int | None]]:
    with world.database.read() as tx:
        found = events.tail(tx, kinds=["run.waits", "run.began"], subject="uff-ufm-0001")
    return [(event.kind, event.data.get("starts_at")) for event in found]


def test_the_expected_wait_of_a_session_is_the_start_delay_of_further_ones_while_it_waits(
    world: SimpleNamespace,
) -> None:
    declared = POOL.start_delay_seconds + POOL.setup_seconds + 60
    assert setup_of(world) == declared
    world.clock.present += 60
    world.cycle.run()
    assert setup_of(world) == declared - POOL.start_delay_seconds + 3 * HOUR
    with world.database.read() as tx:
        wait = queue_waits.of(tx, ["uff-ufm-0001"])["uff-ufm-0001"]
    assert (wait.why, wait.starts_at) == (WHY, NOW + 3 * HOUR)
    world.clock.present += 3 * HOUR
    world.cycle.run()
    assert setup_of(world) == declared
    assert told(world) == [("run.waits", NOW + 3 * HOUR), ("run.began", None)]


def test_an_estimate_that_moves_by_minutes_is_told_once_and_by_hours_anew_also_by_a_new_daemon(
    world: SimpleNamespace,
) -> None:
    def move(seconds: int) -> None:
        session = world.cloud.sessions["uff-ufm-0001"]
        script = replace(session.script, queued_seconds=3 * HOUR + seconds)
        world.cloud.sessions["uff-ufm-0001"] = replace(session, script=script)
        world.clock.present += 60
        world.cycle.run()

    for seconds in (0, 300, -300):
        move(seconds)
    assert told(world) == [("run.waits", NOW + 3 * HOUR)]
    world.cycle = Cycle(world.ports)
    move(300)
    assert len(told(world)) == 1
    move(25 * 60)  # more than a tenth of what is left
    move(2 * HOUR)
    assert [at for _, at in told(world)[1:]] == [NOW + 3 * HOUR + 25 * 60, NOW + 5 * HOUR]
    session = world.cloud.sessions["uff-ufm-0001"]
    world.cloud.sessions["uff-ufm-0001"] = replace(session, script=replace(session.script, queue_why="pending: Nodes"))
    for _ in range(2):
        world.clock.present += 60
        world.cycle.run()
    assert len(told(world)) == 4, "another reason is told anew, and once"


@pytest.mark.parametrize(("starts_at", "believed"), [(NOW - 1, None), (NOW, NOW), (NOW + 500 * DAY, None), ("x", None)])
def test_a_start_that_is_not_ahead_or_too_far_is_not_believed(starts_at: Any, believed: int | None) -> None:
    said = Observed("key", SessionState.QUEUED, "7", waits=InQueue(WHY, starts_at))
    found, refused = border.observed(said, "key", NOW - 60, NOW)
    assert found.waits == InQueue(WHY, believed)
    assert not refused
