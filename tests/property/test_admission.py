"""Admission says yes exactly where concurrency, hours and every quota allow it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota, FirstUseQuota, MoneyQuota, Quota, RollingQuota
from jobs.nouns.window import DAY, HOUR, Calendar, DailyHours
from scheduler.core.admission import Room, room
from scheduler.core.ledger import Charge
from scheduler.core.quota import ObservedLimit, longest

# One grain is half an hour: fine enough to meet every edge, coarse enough to try every start of some days.
GRAIN = 1_800
DAYS = Calendar("day", "Europe/Berlin")
ZERO = DAYS.window_at(1_774_700_000).start  # the day before the clocks of Berlin go forward in 2026
HORIZON = 4 * DAY

grains = st.integers(0, HORIZON // GRAIN)
QUOTAS: list[Quota] = [
    CalendarQuota("day", 4 * HOUR, DAYS),
    MoneyQuota("money", 3_000_000, DAYS),
    RollingQuota("rolling", 5 * HOUR),
    FirstUseQuota("first use", 5 * HOUR),
]


@st.composite
def charge_lists(draw: st.DrawFn) -> list[Charge]:
    spans = draw(st.lists(st.tuples(st.integers(-48, 150), st.integers(1, 8)), max_size=4))
    return [
        Charge(ZERO + start * GRAIN, ZERO + (start + length) * GRAIN, price_microdollars_per_hour=720_000)
        for start, length in spans
    ]


@st.composite
def observations(draw: st.DrawFn) -> list[ObservedLimit]:
    spans = draw(st.lists(st.tuples(grains, st.integers(1, 96), st.integers(0, 12)), max_size=2))
    return [
        ObservedLimit("day", ZERO + start * GRAIN, ZERO + (start + length) * GRAIN, limit * GRAIN, at=number)
        for number, (start, length, limit) in enumerate(spans)
    ]


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    hours = DailyHours("Europe/Berlin", draw(st.integers(0, 47)) * GRAIN, draw(st.integers(0, 47)) * GRAIN)
    return Pool(
        name="p",
        platform="local",
        accelerator="x",
        quotas=tuple(draw(st.lists(st.sampled_from(QUOTAS), max_size=2, unique=True))),
        hours=draw(st.sampled_from([(), (hours,)])),
        sessions_max=draw(st.integers(1, 2)),
        session_cap_seconds=draw(st.integers(1, 12)) * GRAIN,
        overrun_seconds=draw(st.sampled_from([0, GRAIN])),
        price_microdollars_per_hour=720_000,
    )


cases = st.tuples(pools(), charge_lists(), st.lists(grains.map(lambda n: ZERO + n * GRAIN), max_size=3), observations())
Case = tuple[Pool, list[Charge], list[int], list[ObservedLimit]]


@given(cases, grains)
def test_room_is_what_the_tightest_rule_leaves(case: Case, grain: int) -> None:
    pool, charges, live_ends, observed = case
    start = ZERO + grain * GRAIN
    found = room(pool, charges, live_ends, start, observed)
    cap = pool.session_cap_seconds + pool.overrun_seconds
    openings = [window for window in pool.open_windows(start, start + cap) if start in window]
    bounds = {
        "session cap": cap,
        "opening hours": openings[0].seconds if openings else 0,
        "concurrency": 0 if sum(end > start for end in live_ends) >= pool.sessions_max else cap,
    }
    for quota in pool.quotas:
        bounds[quota.name] = longest(quota, charges, start, cap, observed, pool.price_microdollars_per_hour)
    assert found.seconds == min(bounds.values())
    assert bounds[found.limited_by] == found.seconds


def pool_with(*quotas: Quota, **fields: int) -> Pool:
    return Pool("p", "local", "x", quotas=quotas, session_cap_seconds=12 * HOUR, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("live_ends", "sessions", "start", "expected"),
    [
        ([], 1, 0, Room(12 * HOUR, "session cap")),
        ([10], 1, 0, Room(0, "concurrency")),
        ([10], 1, 10, Room(12 * HOUR, "session cap")),
        ([10], 2, 0, Room(12 * HOUR, "session cap")),
        ([10, 20], 2, 9, Room(0, "concurrency")),
        ([10, 20], 2, 10, Room(12 * HOUR, "session cap")),
    ],
)
def test_a_pool_runs_no_more_sessions_than_it_may(
    live_ends: list[int], sessions: int, start: int, expected: Room
) -> None:
    assert room(pool_with(sessions_max=sessions), [], live_ends, start) == expected


def test_overrun_is_part_of_the_room_and_bounded_by_the_quota() -> None:
    pool = pool_with(CalendarQuota("day", 4 * HOUR, Calendar("day")), overrun_seconds=600)
    assert room(pool, [], [], 0) == Room(4 * HOUR, "day")
    assert room(pool_with(overrun_seconds=600), [], [], 0) == Room(12 * HOUR + 600, "session cap")
