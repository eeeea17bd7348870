"""A price that a platform tells goes into the budget by itself; without one, hours of a budget are not spent."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import MoneyQuota
from jobs.nouns.window import DAY, HOUR, Calendar
from jobs.spec import JobSpec
from platforms.base import Capabilities, HourPrice, Observed, SessionState
from scheduler.core.ledger import EntryKind
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.service.facts.snapshot import load_snapshot
from scheduler.service.launch.launch import reserve
from scheduler.service.outside import border
from scheduler.service.outside.ports import Ports
from scheduler.service.quota.audit import read_books
from scheduler.store import events, jobs, ledger, limits, prices
from scheduler.store.engine import Database

BUDGET = MoneyQuota("budget", 12_000_000, Calendar("month"))
POOL = Pool(
    "cloud", "skypilot", "H100", quotas=(BUDGET,), session_cap_seconds=4 * HOUR, setup_seconds=60,
    session_seconds_min=600,
)  # fmt: skip
NOW = 1_795_000_000


@dataclass
class Catalogue:
    """A platform that tells prices."""

    told: list[Any] = field(default_factory=list)
    capabilities: Capabilities = field(default_factory=lambda: Capabilities(tells_price=True))

    def read_quota(self, now: int) -> Any:
        """Tell what is in it."""
        return self.told


@dataclass
class World:
    """One pool with a job of a hundred hours."""

    make: Callable[..., Ports]
    catalogue: Catalogue
    pool: Pool = POOL

    @property
    def ports(self) -> Ports:
        """Those of a daemon that has just started."""
        return self.make(platforms={"cloud": self.catalogue}, pools={"cloud": self.pool})

    def says(self, dollars: float) -> set[str]:
        """Read the books once, with an hour at so many dollars."""
        self.catalogue.told = [HourPrice(round(dollars * 1_000_000), "a list")]
        return read_books(self.ports, ["cloud"])

    def planned(self) -> int:
        """The seconds of all sessions that are planned this month."""
        ports, window = self.ports, BUDGET.calendar.window_at(NOW)
        with ports.database.read() as tx:
            snapshot = load_snapshot(tx, ports.pools, ports.clock.now(), 14 * DAY)
        plan = Planner(PlannerOptions(search_steps=0)).plan(snapshot, None)
        return sum(window.overlap(found.start, found.end) for found in plan.placements)

    def closed(self) -> str:
        """Why the pool is closed."""
        with self.ports.database.read() as tx:
            return limits.closures(tx).get("cloud", (None, ""))[1]


@pytest.fixture
def world(make_ports: Callable[..., Ports], database: Database) -> World:
    """A pool with a budget and without a declared price."""
    with database.write() as tx:
        jobs.add(tx, JobSpec("ufm", "manager", ("train",), 1_000, steps_per_hour=10.0), NOW)
    return World(make_ports, Catalogue())


def test_what_is_told_bounds_the_plan_and_a_restarted_daemon_knows_it(world: World) -> None:
    assert world.says(2) == {"cloud"}
    assert 5 * HOUR < world.planned() <= 6 * HOUR
    assert world.says(4) == {"cloud"}
    assert 2 * HOUR < world.planned() <= 3 * HOUR
    assert world.says(4) == {"cloud"}
    with world.ports.database.read() as tx:
        assert [event.data["microdollars"] for event in events.tail(tx, limit=9, kinds=["price.observed"])] == [
            2_000_000,
            4_000_000,
        ]


def test_a_session_is_reserved_at_that_price(world: World) -> None:
    world.says(4)
    ports = world.ports
    with ports.database.read() as tx:
        plan = Planner(PlannerOptions(search_steps=0)).plan(load_snapshot(tx, ports.pools, NOW, 14 * DAY), None)
    (run,) = reserve(ports, plan, NOW)
    with ports.database.read() as tx:
        (held,) = ledger.entries(tx, since=0, pool="cloud")
    assert (held.kind, held.run, held.price_microdollars_per_hour) == (EntryKind.HOLD, run.key, 4_000_000)
    assert run.held_until - NOW <= 3 * HOUR


def test_a_budget_whose_price_nobody_knows_is_not_spent_until_it_is_told(world: World) -> None:
    assert read_books(world.ports, ["cloud"]) == set()
    assert "does not report the price of an hour" in world.closed()
    assert world.says(2) == {"cloud"}
    assert world.closed() == ""


def test_hours_without_a_budget_need_no_price(world: World) -> None:
    world.pool = replace(POOL, quotas=())
    assert read_books(world.ports, ["cloud"]) == {"cloud"}


@pytest.mark.parametrize("price", [0, -1, True, 10**12, 2.5, None])
def test_a_price_that_cannot_be_closes_the_pool_as_if_unread(world: World, price: Any) -> None:
    world.says(2)
    world.catalogue.told = [HourPrice(price, "a list")]
    assert read_books(world.ports, ["cloud"]) == set()
    assert "its records are invalid" in world.closed()
    with world.ports.database.read() as tx:
        assert prices.of(tx, POOL) == 2_000_000


@pytest.mark.parametrize(
    ("price", "state", "believed"),
    [
        (2_500_000, SessionState.ENDED, 2_500_000),
        (2_500_000, SessionState.RUNNING, None),
        (0, SessionState.ENDED, None),
        (10**12, SessionState.ENDED, None),
        (True, SessionState.ENDED, None),
    ],
)
def test_what_a_session_cost_passes_the_border_when_it_ended_and_can_be(
    price: Any, state: SessionState, believed: int | None
) -> None:
    last = NOW - 50 if state is SessionState.ENDED else None
    told = Observed("run", state, "", NOW - 100, last, price_microdollars_per_hour=price)
    found, _ = border.observed(told, "run", NOW - 200, NOW)
    assert (found.state, found.started, found.price_microdollars_per_hour) == (state, NOW - 100, believed)


def test_what_another_platform_told_and_what_is_declared_otherwise_count_for_nothing(world: World) -> None:
    world.says(2)
    with world.ports.database.read() as tx:
        assert prices.of(tx, replace(POOL, platform="local")) == 0
        assert prices.of(tx, replace(POOL, price_microdollars_per_hour=7)) == 7
        assert prices.of(tx, replace(POOL, name="other")) == 0
