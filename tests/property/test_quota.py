"""The longest session a quota allows, against an oracle that counts every second as the rule defines it."""

from collections.abc import Callable

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from jobs.nouns.quota import CalendarQuota, FirstUseQuota, MoneyQuota, Quota, RollingQuota
from jobs.nouns.window import DAY, HOUR, Calendar, Window
from scheduler.core.ledger import Charge
from scheduler.core.quota import ObservedLimit, declared_limit, limit_at, longest, meter, windows
from tests.lab.night import share

SPAN = 24  # scaled: one second stands for an hour


@st.composite
def intervals(draw: st.DrawFn, within: int, longest_seconds: int) -> tuple[int, int]:
    start = draw(st.integers(-within, within))
    return start, start + draw(st.integers(1, longest_seconds))


@st.composite
def charge_lists(draw: st.DrawFn, within: int = 40, longest_seconds: int = 9) -> list[Charge]:
    spans = draw(st.lists(intervals(within, longest_seconds), max_size=6))
    return [Charge(start, end, held=draw(st.booleans())) for start, end in spans]


def seconds_of(charges: list[Charge]) -> dict[int, int]:
    """Metered seconds that begin at each instant."""
    found: dict[int, int] = {}
    for charge in charges:
        for second in range(charge.start, charge.end):
            found[second] = found.get(second, 0) + charge.sign
    return found


def best(feasible: Callable[[int], bool], cap: int) -> int:
    return max((length for length in range(cap + 1) if length == 0 or feasible(length)), default=0)


# Rolling: at most `limit` in every interval (t - span, t].


def rolling_oracle(limit: int, charges: list[Charge], start: int, length: int) -> bool:
    used = seconds_of([*charges, Charge(start, start + length)])
    last = max([start + length, *(charge.end for charge in charges)]) + SPAN
    return all(sum(used.get(second, 0) for second in range(end - SPAN, end)) <= limit for end in range(start, last + 1))


@settings(max_examples=share(300))
@given(charge_lists(), st.integers(-5, 30), st.integers(1, 20), st.integers(1, 30))
@example([Charge(-24, -20)] * 3, 3, 20, 8)  # more was used in spans that have ended
def test_rolling_quota_allows_what_fits_and_no_second_more(
    charges: list[Charge], start: int, cap: int, limit: int
) -> None:
    """Holds in the future count, and what expires while the session runs is given to it."""
    allowed = longest(RollingQuota("q", limit, SPAN), charges, start, cap)
    used = seconds_of(charges)
    assert allowed >= 0
    if any(sum(used.get(s, 0) for s in range(end - SPAN, end)) > limit for end in range(start, 90)):
        # The limit is overrun already: nothing may be added where it hurts.
        assert allowed == 0 or rolling_adds_nothing(limit, charges, start, allowed)
    else:
        assert allowed == best(lambda length: rolling_oracle(limit, charges, start, length), min(cap, SPAN))


def rolling_adds_nothing(limit: int, charges: list[Charge], start: int, length: int) -> bool:
    before, own = seconds_of(charges), seconds_of([Charge(start, start + length)])
    for end in range(start, start + length + 2 * SPAN):
        added = sum(own.get(second, 0) for second in range(end - SPAN, end))
        known = sum(before.get(second, 0) for second in range(end - SPAN, end))
        if added and known + added > limit:
            return False
    return True


@given(
    st.lists(st.tuples(intervals(40, 9), st.integers(1, 3)), max_size=6),
    st.integers(-30, 30),
    st.integers(0, 30),
    st.integers(0, 50),
    st.integers(1, 3),
)
@example([((-20, -11), 3)], 0, 24, 40, 2)  # what binds lies between two instants at which use changes
@example([((-20, -10), 1)], 0, 24, 20, 2)  # use expires, but half as fast as the session adds to it
def test_a_rolling_quota_of_devices_allows_what_fits_and_no_second_more(
    held: list[tuple[tuple[int, int], int]], start: int, cap: int, limit: int, devices: int
) -> None:
    charges = [Charge(first, last, devices=count) for (first, last), count in held]
    each = [charge for charge in charges for _ in range(charge.devices)]

    def feasible(length: int) -> bool:
        own = [Charge(start, start + length)] * (devices - 1)
        return rolling_oracle(limit, [*each, *own], start, length)

    assume(rolling_oracle(limit, each, start, 0))  # an overrun limit is tried above
    quota = RollingQuota("day", limit, SPAN, by_device=True)
    assert longest(quota, charges, start, min(cap, SPAN), devices=devices) == best(feasible, min(cap, SPAN))


def test_rolling_quota_uses_what_expires_while_it_runs() -> None:
    """Four hours used from 0 to 4; at 24 they leave as fast as a session takes them."""
    quota, used = RollingQuota("q", 4 * HOUR, DAY), [Charge(0, 4 * HOUR)]
    assert longest(quota, used, 20 * HOUR, 12 * HOUR) == 0
    assert longest(quota, used, 24 * HOUR, 12 * HOUR) == 4 * HOUR
    assert longest(quota, used, 26 * HOUR, 12 * HOUR) == 4 * HOUR
    assert longest(quota, [Charge(0, 3 * HOUR)], 23 * HOUR, 12 * HOUR) == 4 * HOUR


def test_rolling_quota_leaves_room_for_a_later_hold() -> None:
    quota, planned = RollingQuota("q", 4 * HOUR, DAY), [Charge(10 * HOUR, 13 * HOUR, held=True)]
    assert longest(quota, planned, 0, 12 * HOUR) == HOUR
    assert longest(quota, planned, 0, 12 * HOUR, [ObservedLimit("q", 0, DAY, 5 * HOUR, at=0)]) == 2 * HOUR


# Calendar and money: at most `limit` in each window, each charged its own part.


def calendar_oracle(
    quota: CalendarQuota | MoneyQuota,
    charges: list[Charge],
    start: int,
    length: int,
    observed: list[ObservedLimit],
    price: int,
) -> bool:
    for window in quota.calendar.windows(start, start + length):
        limit = limit_at(quota, max(window.start, start), observed)
        own = Charge(start, start + length, price_microdollars_per_hour=price)
        if isinstance(quota, MoneyQuota):
            used = sum(charge.cost_within(window.start, window.end) for charge in [*charges, own])
        else:
            used = sum(charge.within(window.start, window.end) for charge in [*charges, own])
        if used > limit and own.within(window.start, window.end):
            return False
    return True


# A zone whose day has 23.5, 24 or 24.5 hours, around the day its clocks go back (5 April 2026).
HOWE = Calendar("day", "Australia/Lord_Howe")
EDGE = HOWE.window_at(1_775_400_000).start
MINUTES = 60


@st.composite
def calendar_cases(draw: st.DrawFn) -> tuple[list[Charge], int, int, list[ObservedLimit]]:
    """Charges, a start and a cap in steps of ten minutes around the edge, and limits that were observed."""
    step = 10 * MINUTES
    spans = draw(st.lists(intervals(200, 50), max_size=5))
    signs = draw(st.lists(st.sampled_from([1, 1, 1, -1]), min_size=5, max_size=5))
    charges = [
        Charge(EDGE + one * step, EDGE + other * step, sign=sign, price_microdollars_per_hour=draw(st.integers(0, 999)))
        for (one, other), sign in zip(spans, signs, strict=False)
    ]
    seen = [
        ObservedLimit(
            "q", EDGE + one * step, EDGE + other * step, draw(st.integers(0, 20_000)), at=draw(st.integers(0, 3))
        )
        for one, other in draw(st.lists(intervals(200, 200), max_size=3))
    ]
    start = EDGE + draw(st.integers(-160, 160)) * step + draw(st.integers(0, 59))
    return charges, start, draw(st.integers(1, 40 * HOUR)), seen


@given(calendar_cases(), st.integers(1, 20_000))
def test_calendar_quota_allows_what_fits_and_no_second_more(
    case: tuple[list[Charge], int, int, list[ObservedLimit]], limit: int
) -> None:
    """Limits may shrink or grow by observation, and credits give time back."""
    charges, start, cap, observed = case
    quota = CalendarQuota("q", limit, HOWE)
    allowed = longest(quota, charges, start, cap, observed)
    assert 0 <= allowed <= cap
    assert allowed == 0 or calendar_oracle(quota, charges, start, allowed, observed, 0)
    assert allowed == cap or not calendar_oracle(quota, charges, start, allowed + 1, observed, 0)


@given(calendar_cases(), st.integers(0, 5_000), st.integers(0, 3_000))
def test_money_quota_allows_what_it_can_pay_and_no_second_more(
    case: tuple[list[Charge], int, int, list[ObservedLimit]], limit: int, price: int
) -> None:
    charges, start, cap, observed = case
    quota = MoneyQuota("q", limit, HOWE)
    allowed = longest(quota, charges, start, cap, observed, price)
    assert 0 <= allowed <= cap
    if price == 0:
        assert allowed == cap
        return
    assert allowed == 0 or calendar_oracle(quota, charges, start, allowed, observed, price)
    assert allowed == cap or not calendar_oracle(quota, charges, start, allowed + 1, observed, price)


def test_a_session_over_midnight_is_charged_to_both_days() -> None:
    quota = CalendarQuota("q", 4 * HOUR, Calendar("day"))
    assert longest(quota, [Charge(0, 3 * HOUR)], 22 * HOUR, 12 * HOUR) == HOUR
    assert longest(quota, [Charge(0, 2 * HOUR)], 22 * HOUR, 12 * HOUR) == 6 * HOUR
    assert longest(quota, [Charge(0, 2 * HOUR), Charge(30 * HOUR, 33 * HOUR)], 22 * HOUR, 12 * HOUR) == 3 * HOUR


def test_a_session_is_free_and_on_one_device_unless_more_is_said() -> None:
    assert longest(MoneyQuota("q", 0, Calendar("day")), [], 0, HOUR) == HOUR
    assert longest(CalendarQuota("q", 60, Calendar("day"), by_device=True), [], 0, HOUR) == 60


def test_a_limit_seen_for_tomorrow_binds_tomorrow_only() -> None:
    quota = CalendarQuota("q", 4 * HOUR, Calendar("day"))
    tomorrow = [ObservedLimit("q", DAY, 2 * DAY, HOUR, at=0)]
    assert longest(quota, [], 20 * HOUR, 12 * HOUR, tomorrow) == 5 * HOUR
    assert longest(quota, [], 18 * HOUR, 12 * HOUR, tomorrow) == 4 * HOUR


def test_a_limit_that_shrank_below_its_use_leaves_nothing_and_says_so() -> None:
    quota = CalendarQuota("q", 4 * HOUR, Calendar("day"))
    shrunk = [ObservedLimit("q", 0, DAY, HOUR, at=5)]
    found = meter("pool", quota, [Charge(0, 3 * HOUR)], 4 * HOUR, shrunk)
    assert (found.limit, found.used, found.free) == (HOUR, 3 * HOUR, 0)
    assert longest(quota, [Charge(0, 3 * HOUR)], 4 * HOUR, HOUR, shrunk) == 0
    grown = [*shrunk, ObservedLimit("q", 0, DAY, 5 * HOUR, at=6)]
    assert longest(quota, [Charge(0, 3 * HOUR)], 4 * HOUR, 9 * HOUR, grown) == 2 * HOUR


# What all share.

QUOTAS: list[Quota] = [
    CalendarQuota("q", 10, Calendar("day")),
    MoneyQuota("q", 10, Calendar("day")),
    RollingQuota("q", 10, SPAN),
    FirstUseQuota("q", 10, SPAN),
]


@pytest.mark.parametrize("quota", QUOTAS, ids=lambda quota: type(quota).__name__)
def test_the_newest_observation_in_force_overrides_the_declared_limit(quota: Quota) -> None:
    seen = [
        ObservedLimit("q", 0, 100, 7, at=1),
        ObservedLimit("q", 50, 100, 9, at=2),
        ObservedLimit("z", 0, 100, 1, at=9),
    ]
    assert [limit_at(quota, at, seen) for at in (-1, 0, 49, 50, 99, 100)] == [10, 7, 7, 9, 9, 10]
    assert limit_at(quota, 60, [*seen, ObservedLimit("q", 60, 61, 8, at=2)]) == 8, "of two of one time the later told"
    assert limit_at(quota, 60, seen[::-1]) == 9
    assert declared_limit(quota) == 10


@pytest.mark.parametrize("quota", QUOTAS[:1] + QUOTAS[2:], ids=lambda quota: type(quota).__name__)
@given(charges=charge_lists(), start=st.integers(0, 30), cap=st.integers(1, 20))
def test_more_use_never_leaves_more_room(quota: Quota, charges: list[Charge], start: int, cap: int) -> None:
    """True of past use; a hold in the future may also open a span."""
    past = [charge for charge in charges if charge.end <= start]
    if isinstance(quota, FirstUseQuota):
        return
    rooms = [longest(quota, past[:count], start, cap) for count in range(len(past) + 1)]
    assert rooms == sorted(rooms, reverse=True)


@given(charges=charge_lists(), at=st.integers(-30, 60))
def test_a_meter_counts_the_window_and_what_of_it_is_only_held(charges: list[Charge], at: int) -> None:
    for quota in QUOTAS:
        found = meter("pool", quota, charges, at)
        inside = [charge.within(found.start, found.end) for charge in charges]
        if not isinstance(quota, MoneyQuota):
            assert found.used + found.held == sum(inside)
            assert found.held == sum(n for n, charge in zip(inside, charges, strict=True) if charge.held)
        assert found.free == max(0, found.limit - found.used - found.held)
        if not isinstance(quota, RollingQuota):
            assert found.start <= at < found.end


@pytest.mark.parametrize("quota", QUOTAS, ids=lambda quota: type(quota).__name__)
def test_what_is_overspent_leaves_nothing_and_not_less(quota: Quota) -> None:
    spent = [Charge(0, 15, price_microdollars_per_hour=3_600)]
    assert longest(quota, spent, 16, 20, price_microdollars_per_hour=3_600) == 0
    assert meter("pool", quota, spent, 16).free == 0


@example([Charge(0, 1)], 5, SPAN - 5)  # a span that closes as the session ends
@example([Charge(0, 1), Charge(SPAN - 4, SPAN)], 30, 1)  # use that ends with its span
@example([Charge(5, 6)], 0, 5)  # a span that opens as the session ends
@example([Charge(0, 1)], 0, 30)  # a span that opens as the session starts
@given(charges=charge_lists(), start=st.integers(-30, 60), length=st.integers(1, 30))
def test_spans_from_first_use_are_those_that_use_opened_and_the_next(
    charges: list[Charge], start: int, length: int
) -> None:
    """Second by second: a span opens with use outside of spans; of a session, with its first second outside."""
    opened: list[int] = []
    for second in sorted({second for one in charges if one.sign > 0 for second in range(one.start, one.end)}):
        if not opened or second >= opened[-1] + SPAN:
            opened.append(second)
    end = start + length
    expected = {begins for begins in opened if begins < end and begins + SPAN > start}
    first = next((at for at in range(start, end) if not any(b <= at < b + SPAN for b in opened)), None)
    expected |= set() if first is None else {first}
    found = windows(FirstUseQuota("q", 10, SPAN), charges, start, end)
    assert found == [Window(begins, begins + SPAN) for begins in sorted(expected)]
