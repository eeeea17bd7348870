"""A budget that others use as well: plans and launches take no more than is left of it, and blame nobody."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import DAY, EVER, HOUR, Calendar, Window
from jobs.spec import JobSpec
from platforms.base import Capabilities, QuotaReading
from scheduler.core.admission import room
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.quota import ACCOUNT
from scheduler.core.run import Ended, Lane, Outcome, Run, Running
from scheduler.core.snapshot import Snapshot
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.service.facts.snapshot import load_snapshot
from scheduler.service.outside.ports import Ports
from scheduler.service.quota.audit import explained_seconds, read_books
from scheduler.service.quota.usage import meters
from scheduler.store import events, jobs, ledger, limits, runs
from scheduler.store.engine import Database

NOW = 1_795_000_000
POOL = Pool("cluster", "slurm", "H100", session_cap_seconds=4 * HOUR, setup_seconds=60, session_seconds_min=600)
DECLARED = CalendarQuota(ACCOUNT, 900 * HOUR, Calendar("month"))


@dataclass
class Account:
    """A platform that keeps such books."""

    told: list[QuotaReading] = field(default_factory=list)
    capabilities: Capabilities = field(default_factory=lambda: Capabilities(reports_quota=True))

    def read_quota(self, now: int) -> Any:
        """Tell the books."""
        return self.told


@dataclass
class World:
    """One pool with a job of a hundred hours."""

    ports: Ports
    account: Account

    def says(self, limit: int, used: int = 0, reserved: int = 0) -> None:
        """Read once that so many seconds are granted, used and promised to running jobs."""
        now = self.ports.clock.now()
        self.account.told = [QuotaReading(ACCOUNT, now, now + 365 * DAY, limit, used, reserved, shared=True)]
        read_books(self.ports, ["cluster"])

    def snapshot(self) -> Snapshot:
        """What the planner is given."""
        with self.ports.database.read() as tx:
            return load_snapshot(tx, self.ports.pools, self.ports.clock.now(), 14 * DAY)

    def planned(self) -> int:
        """The seconds of all sessions that are planned for two weeks, or until the declared quota renews."""
        plan = Planner(PlannerOptions(search_steps=0)).plan(self.snapshot(), None)
        window = DECLARED.calendar.window_at(NOW) if self.ports.pools["cluster"].quotas else EVER
        return sum(window.overlap(found.start, found.end) for found in plan.placements)

    def admitted(self) -> int:
        """The longest session that may begin now."""
        with self.ports.database.read() as tx:
            charges = ledger.charges(tx, 0).get("cluster", ())
            return room(self.ports.pools["cluster"], charges, (), NOW, limits.observed(tx).get("cluster", ())).seconds

    def session(self, state: Running | Ended, start: int, until: int, devices: int = 1) -> None:
        """Let a session have begun at ``start``, that is held until ``until``."""
        with self.ports.write() as tx:
            number = 1 + len(runs.since(tx, 0))
            lane = Lane(0, "ufm", number, tuple(range(devices)), None)
            runs.insert(tx, Run(f"r{number}", "cluster", (lane,), start, until, until, state), start)
            held = LedgerEntry(EntryKind.HOLD, "cluster", f"r{number}", start, until, start)
            ledger.append(tx, [held])
            if isinstance(state, Ended):
                ledger.append(tx, [replace(held, kind=EntryKind.SPEND, end=state.at)])


@pytest.fixture(params=[(), (DECLARED,)], ids=["not declared", "declared"])
def world(make_ports: Callable[..., Ports], database: Database, request: pytest.FixtureRequest) -> World:
    """The pool, without a quota and with one of the budget's name."""
    account = Account()
    pool = replace(POOL, quotas=request.param)
    with database.write() as tx:
        jobs.add(tx, JobSpec("ufm", "manager", ("train",), 1_000, steps_per_hour=10.0), NOW)
    return World(make_ports(platforms={"cluster": account}, pools={"cluster": pool}), account)


def test_no_more_is_planned_and_admitted_than_is_left(world: World) -> None:
    assert world.planned() > 40 * HOUR
    world.says(10 * HOUR, used=3 * HOUR, reserved=HOUR)
    assert 4 * HOUR < world.planned() <= 6 * HOUR
    world.says(10 * HOUR, used=8 * HOUR, reserved=HOUR)
    assert world.admitted() == HOUR
    world.says(10 * HOUR, used=11 * HOUR)
    assert world.planned() == world.admitted() == 0


def test_our_own_sessions_count_once(world: World) -> None:
    world.session(Ended(Outcome.YIELDED, NOW - 2 * HOUR, NOW - 3 * HOUR), NOW - 3 * HOUR, NOW)
    world.session(Running("7", NOW - HOUR), NOW - HOUR, NOW + 2 * HOUR)
    # Granted ten: the first used one, the second one so far, others three; two are promised to the second.
    world.says(10 * HOUR, used=5 * HOUR, reserved=2 * HOUR)
    assert world.admitted() == 3 * HOUR


def test_what_others_use_is_neither_booked_nor_an_alarm_and_a_little_up_and_down_no_news(world: World) -> None:
    for used in (3 * HOUR, 3 * HOUR + 60, 3 * HOUR + 30, 3 * HOUR + 60):
        world.says(10 * HOUR, used=used)
    with world.ports.database.read() as tx:
        assert not [entry for entry in ledger.entries(tx) if entry.kind is EntryKind.ADJUST]
        assert [event.data["limit"] for event in events.tail(tx, kinds=["limit.observed"])] == [
            7 * HOUR,
            7 * HOUR - 60,
        ]
        assert not events.tail(tx, kinds=["quota.orphan_suspected", "quota.adjusted"])


def test_a_limit_that_is_taken_away_holds_no_longer(world: World) -> None:
    world.says(HOUR)
    with world.ports.database.read() as tx:
        (meter,) = meters(tx, world.ports.pools, NOW)
    assert (meter.quota, meter.limit, meter.free, meter.source) == (ACCOUNT, HOUR, HOUR, "slurm account")
    assert (meter.resets_at is None) == (not world.ports.pools["cluster"].quotas)
    world.account.told = []
    read_books(world.ports, ["cluster"])
    assert world.admitted() == 4 * HOUR
    assert world.planned() > 40 * HOUR


def test_where_sessions_ask_for_their_devices_the_account_counts_each(
    make_ports: Callable[..., Ports], database: Database
) -> None:
    """Two sessions of four and of two devices: each second of theirs is so many of the account's."""
    account = Account()
    pool = replace(POOL, device_counts=(1, 2, 4), devices_max=8, devices_per_session=4, sessions_max=8)
    with database.write() as tx:
        jobs.add(tx, JobSpec("ufm", "manager", ("train",), 1_000, steps_per_hour=10.0), NOW)
    world = World(make_ports(platforms={"cluster": account}, pools={"cluster": pool}), account)
    world.session(Ended(Outcome.YIELDED, NOW - 2 * HOUR, NOW - 3 * HOUR), NOW - 3 * HOUR, NOW, devices=4)
    world.session(Running("7", NOW - HOUR), NOW - HOUR, NOW + 2 * HOUR, devices=2)
    # Granted 24: the first used four, the second two so far, others six; four are promised to the second.
    world.says(24 * HOUR, used=12 * HOUR, reserved=4 * HOUR)
    with database.read() as tx:
        charges, observed = ledger.charges(tx, 0)["cluster"], limits.observed(tx)["cluster"]
        (meter,) = meters(tx, world.ports.pools, NOW)
    assert (meter.quota, meter.used, meter.held, meter.free) == (ACCOUNT, 4 * HOUR, 6 * HOUR, 8 * HOUR)
    longest = [room(pool, charges, (), NOW, observed, devices).seconds for devices in pool.device_counts]
    assert longest == [4 * HOUR, 4 * HOUR, 2 * HOUR]


def test_an_account_of_sessions_counts_their_devices_only_where_it_is_asked_to() -> None:
    lanes = (Lane(0, "ufm", 1, (0, 1), None),)
    run = Run("uff-ufm-0001", "kaggle", lanes, NOW - HOUR, NOW + HOUR, NOW + HOUR, Running("7", NOW - HOUR))
    seconds = [explained_seconds((), [run], Window(NOW - DAY, NOW), NOW, **more) for more in ({}, {"by_device": True})]
    assert seconds == [HOUR, 2 * HOUR]
