"""Edges of the daemon's cycle that no other test would notice: prices, addresses, stops, failures, room for others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota, MoneyQuota
from jobs.nouns.window import DAY, HOUR, Calendar
from jobs.spec import JobSpec
from platforms.artifacts.base import Grant, StoreUnreachable
from platforms.base import SessionState, StopChannel
from scheduler.core.ledger import EntryKind
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.quota import ObservedLimit
from scheduler.core.run import Ended, Stopping, Submitting
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.launch.launch import reserve
from scheduler.service.outside.ports import Ports
from scheduler.service.requests import sessions
from scheduler.store import jobs, ledger, limits, runs, watched
from scheduler.store.engine import Database
from tests.lab.fake import FakeCloud, FakePlatform, Fault, Script

NOW = 1_795_000_000
PRICE = 740_000


class World(SimpleNamespace):
    """One pool of a price, jobs in the queue, and a plan that a test hands in."""

    def live(self) -> list[Any]:
        """Return the runs that have not ended."""
        with self.database.read() as tx:
            return runs.live(tx)

    def launch(self, *lengths: int) -> list[Any]:
        """Launch a session of each length, each with a job of its own."""
        now = self.clock.present
        places = tuple(
            Placement("paid", now, now + length, (PlannedLane(f"job-{number}", 1, self.steps),))
            for number, length in enumerate(lengths)
        )
        self.plans.append(Plan(now, places, ()))
        self.cycle.run()
        return self.live()

    def after(self, seconds: int) -> None:
        """Run a cycle that much later."""
        self.clock.present += seconds
        self.cycle.run()

    def says(self, key: str, **word: Any) -> None:
        """Leave a last word of a session's first lane."""
        self.ports.artifacts.put(f"runs/{key}/lane-0/result.json", json.dumps(word).encode())


@pytest.fixture
def world(make_ports: Callable[..., Ports], database: Database) -> World:
    """The world, at NOW."""
    cloud, plans = FakeCloud(sessions_max=2), list[Plan]()
    day = Calendar("day")
    pool = Pool(
        "paid", "fake", "T4", (MoneyQuota("money", 100_000_000, day), CalendarQuota("hours", 8 * HOUR, day)),
        sessions_max=2, overrun_seconds=600, price_microdollars_per_hour=PRICE, visibility_seconds=60,
    )  # fmt: skip
    ports = make_ports(
        platforms={"paid": FakePlatform(cloud)},
        pools={"paid": pool},
        plan=lambda snapshot, _: plans.pop() if plans else Plan(snapshot.now, (), ()),
    )
    with database.write() as tx:
        for number in range(2):
            spec = JobSpec(f"job-{number}", "manager", ("train",), target_step=500, steps_per_hour=100.0)
            jobs.add(tx, spec, NOW)
    return World(
        ports=ports, cloud=cloud, clock=ports.clock, plans=plans, database=database, cycle=Cycle(ports), steps=1
    )


def test_what_a_session_was_charged_stands_in_the_books_at_its_price(world: World) -> None:
    world.cloud.usual = Script(queued_seconds=300, runs_seconds=5_400)
    (run,) = world.launch(2 * HOUR)
    world.after(6_000)
    with world.database.read() as tx:
        entries = {entry.kind: entry for entry in ledger.entries(tx) if entry.run == run.key}
        (charge,) = ledger.charges(tx, 0)["paid"]
    assert {entry.price_microdollars_per_hour for entry in entries.values()} == {PRICE}
    spend = entries[EntryKind.SPEND]
    assert (spend.start, spend.end) == (NOW + 300, NOW + 5_700), "what it waited in a queue costs nothing"
    assert charge.cost_within(NOW, NOW + DAY) == PRICE * 3 // 2


def test_the_addresses_of_a_session_outlast_all_that_its_platform_may_let_it_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[Grant]()
    address = world.ports.artifacts.payload_address

    def watched_address(grant: Grant) -> Any:
        given.append(grant)
        return address(grant)

    monkeypatch.setattr(world.ports.artifacts, "payload_address", watched_address)
    (run,) = world.launch(2 * HOUR)
    (grant,) = given
    assert run.held_until == run.deadline + 600
    assert NOW + grant.lasts_seconds >= run.held_until + 900


def test_a_session_that_shows_up_after_it_was_given_up_is_ended_by_force(world: World) -> None:
    world.cloud.usual = Script(hidden_seconds=3_000, stop_seconds=None)
    world.ports.platforms["paid"] = FakePlatform(FakeCloud())  # a list that does not show it, and promises nothing
    shown = world.ports.platforms["paid"]
    (run,) = world.launch(2 * HOUR)
    world.cloud.sessions = shown._cloud.sessions
    hidden = dict(world.cloud.sessions)
    # Its answer was lost as well: the books know an intent only.
    with world.ports.write() as tx:
        state = runs.get(tx, run.key).state
        tx.execute(text("UPDATE runs SET state = 'submitting', state_detail = :intent"), {"intent": _intent(NOW)})
    assert not isinstance(state, Submitting)
    world.cloud.sessions.clear()
    for _ in range(4):
        world.after(400)
    assert world.live() == [], "given up"
    with world.database.read() as tx:
        assert [one.run.key for one in watched.everything(tx)] == [run.key]
    shown._cloud.sessions.update(hidden)
    world.after(700)
    session = shown.find([run.key], world.clock.present)[run.key]
    assert (session.state, session.detail) == (SessionState.ENDED, "killed")


def test_an_intent_is_not_given_up_while_its_stop_flag_cannot_be_put(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the flag a session that was started unseen would train beside the next one of its job."""
    world.cloud.usual = Script(fault=Fault.LOST_REQUEST)
    (run,) = world.launch(2 * HOUR)
    put = world.ports.artifacts.put

    def away(key: str, *_: Any, **__: Any) -> None:
        raise StoreUnreachable("put", key, "no answer")

    monkeypatch.setattr(world.ports.artifacts, "put", away)
    for _ in range(6):
        world.after(400)
    assert [one.key for one in world.live()] == [run.key]
    monkeypatch.setattr(world.ports.artifacts, "put", put)
    for _ in range(4):
        world.after(400)
    assert world.live() == []


@pytest.mark.parametrize(("told", "configured"), [(3_000, 60), (60, 3_000)])
def test_a_launch_without_an_answer_is_waited_for_as_long_as_platform_or_pool_may_hide_it(
    world: World, told: int, configured: int
) -> None:
    world.cloud.usual = Script(fault=Fault.LOST_REQUEST, hidden_seconds=told)
    world.ports.platforms["paid"] = FakePlatform(world.cloud)
    world.ports.pools["paid"] = replace(world.ports.pools["paid"], visibility_seconds=configured)
    world.launch(2 * HOUR)
    world.after(2_999 + world.ports.policy.overdue_seconds)
    assert [type(run.state) for run in world.live()] == [Submitting]
    for _ in range(10):
        world.after(60)
    assert world.live() == []


def test_a_session_that_was_given_up_is_asked_for_now_and_then_and_not_in_every_cycle(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.cloud.usual = Script(fault=Fault.LOST_REQUEST)
    world.launch(2 * HOUR)
    for _ in range(3):
        world.after(HOUR)
    with world.database.read() as tx:
        (late,) = watched.everything(tx)
    asked, find = list[int](), FakePlatform.find

    def counted(self: FakePlatform, keys: Any, now: int) -> Any:
        asked.extend([now] * (late.run.key in keys))
        return find(self, keys, now)

    monkeypatch.setattr(FakePlatform, "find", counted)
    for _ in range(40):
        world.after(60)
    assert len(asked) == 4, "in forty minutes"


def _intent(since: int) -> str:
    return json.dumps({"attempts": 1, "since": since}, sort_keys=True, separators=(",", ":"))


def test_a_stop_flag_that_is_gone_is_put_again_and_one_that_is_there_stays(world: World) -> None:
    world.cloud.usual = Script(stop_seconds=None)
    (run,) = world.launch(2 * HOUR)
    sessions.stop(world.database, world.ports.artifacts, run.key, "mia wants it", NOW, "mia")
    flag = f"runs/{run.key}/stop"
    world.after(30)
    assert isinstance(world.live()[0].state, Stopping)
    first = world.ports.artifacts.read(flag, 1_000)
    assert json.loads(first)["lane"] is None
    world.ports.artifacts.delete(flag)
    world.after(30)
    assert world.ports.artifacts.read(flag, 1_000) == first
    other = first.replace(b"mia wants it", b"somebody else's reason")
    world.ports.artifacts.put(flag, other)
    world.after(30)
    assert world.ports.artifacts.read(flag, 1_000) == other


def test_a_stop_flag_that_nobody_can_look_for_is_put_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.cloud.usual = Script(stop_seconds=None)
    (run,) = world.launch(2 * HOUR)
    sessions.stop(world.database, world.ports.artifacts, run.key, "mia wants it", NOW, "mia")
    flag = f"runs/{run.key}/stop"
    world.after(30)
    world.ports.artifacts.delete(flag)

    def size(key: str) -> int | None:
        raise StoreUnreachable("size", key, "no answer")

    monkeypatch.setattr(world.ports.artifacts, "size", size)
    world.after(30)
    assert json.loads(world.ports.artifacts.read(flag, 1_000))["reason"] == "mia wants it"


def test_a_session_that_heeds_its_platform_is_asked_through_it_and_given_time_to_leave(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = world.ports.platforms["paid"]
    find = shown.find

    def heeding(keys: Any, now: int) -> Any:
        return {key: replace(found, stop_channel=StopChannel.PLATFORM) for key, found in find(keys, now).items()}

    monkeypatch.setattr(shown, "find", heeding)
    world.cloud.usual = Script(stop_seconds=200)
    (run,) = world.launch(2 * HOUR)
    sessions.stop(world.database, world.ports.artifacts, run.key, "mia wants it", NOW, "mia")
    world.after(30)
    world.after(100)
    assert find([run.key], world.clock.present)[run.key].state is SessionState.RUNNING
    world.after(200)
    left = find([run.key], world.clock.present)[run.key]
    assert (left.state, left.detail) == (SessionState.ENDED, "stopped")


def test_a_session_that_overstays_is_ended_by_force(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, told = world.ports.platforms["paid"], []
    find, stop = shown.find, shown.stop

    def overstaying(keys: Any, now: int) -> Any:
        return {key: replace(found, state=SessionState.RUNNING, ended=None) for key, found in find(keys, now).items()}

    def stopping(key: str, now: int, *, force: bool) -> None:
        told.append((key, force))
        stop(key, now, force=force)

    monkeypatch.setattr(shown, "find", overstaying)
    monkeypatch.setattr(shown, "stop", stopping)
    (run,) = world.launch(2 * HOUR)
    world.after(1)
    world.after(run.deadline - NOW - 1 + world.ports.policy.overdue_seconds)
    assert told == []
    world.after(1)
    assert told == [(run.key, True)]


def test_failures_count_from_the_beginning_again_once_a_session_has_made_progress(world: World) -> None:
    failed = {"outcome": "failed", "error_class": "store", "why": "no store"}
    counted = []
    for progress in (0, 0, 40):
        world.cloud.usual = Script(runs_seconds=600)
        world.clock.present += DAY
        (run,) = world.launch(2 * HOUR)
        with world.ports.write() as tx:
            if progress and progress > jobs.get(tx, "job-0").done_step:
                jobs.note_progress(tx, "job-0", progress, None)
        world.says(run.key, **failed)
        world.after(700)
        with world.database.read() as tx:
            counted.append(jobs.get(tx, "job-0").failures)
    assert counted == [1, 2, 1]


def test_a_session_is_held_longer_only_by_what_others_do_not_need(world: World) -> None:
    """Both end their jobs, so each would like to be held longer; the first must leave the second its hours."""
    world.steps = 500
    first, second = world.launch(3 * HOUR, 4 * HOUR)
    assert second.deadline - second.planned_start >= 4 * HOUR
    assert first.deadline >= NOW + 3 * HOUR
    held = sum(run.held_until - run.planned_start for run in (first, second))
    assert held <= 8 * HOUR


def test_without_the_room_of_others_the_second_of_two_would_not_fit(world: World) -> None:
    places = tuple(
        Placement("paid", NOW, NOW + length, (PlannedLane(f"job-{number}", 1, 500),))
        for number, length in enumerate((3 * HOUR, 5 * HOUR - 1_200))
    )
    assert len(reserve(world.ports, Plan(NOW, places, ()), NOW)) == 2


@pytest.mark.parametrize(("platform", "together"), [("sagemaker", ("job-0",)), ("fake", ("job-0", "job-1"))])
def test_jobs_with_different_images_do_not_share_a_session(
    world: World, platform: str, together: tuple[str, ...]
) -> None:
    with world.ports.write() as tx:
        jobs.change_spec(tx, "job-1", NOW, "test", image="mine:1")
    pools = {name: replace(pool, platform=platform, devices_per_session=2) for name, pool in world.ports.pools.items()}
    lanes = (PlannedLane("job-0", 1, 500), PlannedLane("job-1", 1, 500))
    places = (Placement("paid", NOW, NOW + 3 * HOUR, lanes),)
    (run,) = reserve(replace(world.ports, pools=pools), Plan(NOW, places, ()), NOW)
    assert tuple(lane.job for lane in run.lanes) == together


@pytest.mark.parametrize(("whole", "launched"), [(False, 1), (True, 0)])
def test_a_job_that_is_run_whole_is_not_launched_with_less_time_than_it_needs(
    world: World, whole: bool, launched: int
) -> None:
    """A plan comes a quarter of an hour late, and the hours that are left make up for nothing."""
    with world.ports.write() as tx:
        limits.observe(tx, "paid", ObservedLimit("hours", NOW - DAY, NOW + DAY, 8 * HOUR - 900, NOW, "fake"))
        jobs.change_spec(tx, "job-0", NOW, "test", whole=whole, target_step=1)
    places = (Placement("paid", NOW, NOW + 8 * HOUR - 600, (PlannedLane("job-0", 1, 1),)),)
    assert len(reserve(world.ports, Plan(NOW, places, ()), NOW + 900)) == launched


def test_the_newest_observation_of_a_limit_holds_also_when_it_is_as_old(world: World) -> None:
    def seen(limit: int, at: int) -> int:
        with world.ports.write() as tx:
            limits.observe(tx, "paid", ObservedLimit("hours", NOW, NOW + DAY, limit, at, "fake"))
        with world.database.read() as tx:
            (found,) = limits.observed(tx)["paid"]
        return found.limit

    assert [seen(100, 10), seen(90, 10), seen(80, 9), seen(70, 11)] == [100, 90, 90, 70]


def test_a_run_ends_once(world: World) -> None:
    world.cloud.usual = Script(runs_seconds=600)
    (run,) = world.launch(2 * HOUR)
    for _ in range(3):
        world.after(700)
    with world.database.read() as tx:
        state = runs.get(tx, run.key).state
        spent = [entry for entry in ledger.entries(tx) if entry.kind is EntryKind.SPEND]
    assert isinstance(state, Ended)
    assert len(spent) == 1


def test_a_rehearsal_at_its_end_asks_all_to_leave_and_launches_nothing_more(world: World) -> None:
    world.cloud.usual = Script(runs_seconds=300)
    (run,) = world.launch(2 * HOUR)
    assert not world.cycle.drain("time is over")
    (stopping,) = world.live()
    assert isinstance(stopping.state, Stopping)
    assert stopping.state.why == "time is over"
    world.plans.append(Plan(NOW, (Placement("paid", NOW, NOW + HOUR, (PlannedLane("job-1", 1, 1),)),), ()))
    for _ in range(10):
        world.clock.present += 60
        if world.cycle.drain("time is over"):
            break
    assert world.live() == []
    with world.database.read() as tx:
        assert isinstance(runs.get(tx, run.key).state, Ended)
    assert list(world.cloud.sessions) == [run.key]
    assert world.cycle.drain("time is over")


def test_each_plan_is_made_around_the_one_before(world: World) -> None:
    around = list[Any]()

    def plan(snapshot: Any, incumbent: Plan | None) -> Plan:
        around.append(incumbent and incumbent.made_at)
        return Plan(snapshot.now, (), ())

    cycle = Cycle(replace(world.ports, plan=plan))
    for _ in range(3):
        cycle.run()
        world.clock.present += DAY
    assert around == [None, NOW, NOW + DAY]
