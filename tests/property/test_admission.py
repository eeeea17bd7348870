"""Admission says yes exactly where concurrency, hours and every quota allow it, and finds the first such instant."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.admission import Room, earliest, room
from scheduler.core.ledger import Charge
from scheduler.core.pool import Pool
from scheduler.core.quota import (
    CalendarQuota,
    FirstUseQuota,
    MoneyQuota,
    ObservedLimit,
    Quota,
    RollingQuota,
    longest,
)
from scheduler.core.window import DAY, HOUR, Calendar, DailyHours

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


@settings(max_examples=150)
@given(cases, grains, st.integers(1, 10))
def test_the_earliest_start_has_room_and_none_before_it_has(case: Case, grain: int, length: int) -> None:
    """Compared with trying every half hour, and the seconds around the answer."""
    pool, charges, live_ends, observed = case
    after, seconds = ZERO + grain * GRAIN, length * GRAIN

    def fits(start: int) -> bool:
        return room(pool, charges, live_ends, start, observed).seconds >= seconds

    found = earliest(pool, charges, live_ends, after, seconds, observed, within_seconds=HORIZON)
    tried = next((start for start in range(after, after + HORIZON, GRAIN) if fits(start)), None)
    if found is None:
        assert tried is None
        return
    assert after <= found < after + HORIZON
    assert fits(found)
    assert tried is None or found <= tried
    assert found == after or not fits(found - 1)


def pool_with(*quotas: Quota, **fields: int) -> Pool:
    return Pool("p", "local", "x", quotas=quotas, session_cap_seconds=12 * HOUR, **fields)  # type: ignore[arg-type]


def test_a_session_may_begin_before_the_window_that_gives_it_room() -> None:
    """Three hours are used today and one is left: four hours fit from 23:00 on, over midnight."""
    pool = pool_with(CalendarQuota("day", 4 * HOUR, Calendar("day")))
    assert earliest(pool, [Charge(0, 3 * HOUR)], [], 5 * HOUR, 4 * HOUR) == 23 * HOUR


def test_a_rolling_quota_gives_room_while_old_use_leaves() -> None:
    pool = pool_with(RollingQuota("rolling", 4 * HOUR, DAY))
    used = [Charge(0, 3 * HOUR), Charge(20 * HOUR, 21 * HOUR)]
    assert earliest(pool, used, [], 22 * HOUR, 3 * HOUR) == 24 * HOUR
    assert earliest(pool, used, [], 22 * HOUR, 4 * HOUR) == 41 * HOUR


def test_a_limit_that_shrank_for_a_while_gives_room_when_it_is_back() -> None:
    pool = pool_with(CalendarQuota("day", 4 * HOUR, Calendar("day")))
    shrunk = [ObservedLimit("day", 0, 9 * HOUR, HOUR, at=1)]
    assert earliest(pool, [], [], HOUR, 2 * HOUR, shrunk) == 9 * HOUR


def test_no_start_is_found_for_what_never_fits() -> None:
    pool = pool_with(CalendarQuota("day", HOUR, Calendar("day")))
    assert earliest(pool, [], [], 0, 3 * HOUR) is None
    assert earliest(pool, [], [], 0, 2 * HOUR) == 23 * HOUR  # an hour of each day
    assert earliest(pool_with(), [], [], 0, 13 * HOUR) is None


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
