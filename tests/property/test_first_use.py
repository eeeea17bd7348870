"""Spans that open with the first use: exact where all is known, and safe whenever the rest may have been used."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobs.nouns.quota import FirstUseQuota
from jobs.nouns.window import DAY, HOUR
from scheduler.core.ledger import Charge, EntryKind, LedgerEntry, fold
from scheduler.core.quota import BOOKS_SECONDS, ObservedLimit, longest, meter
from scheduler.store.ledger import LOOK_BACK_SECONDS
from tests.lab.night import share

Interval = tuple[int, int]


def spans_of(used: Sequence[Interval], span: int) -> list[int]:
    """Starts of the spans that intervals open, found second by second."""
    opened: list[int] = []
    for second in sorted({second for start, end in used for second in range(start, end)}):
        if not opened or second >= opened[-1] + span:
            opened.append(second)
    return opened


def overlap(interval: Interval, opens: int, span: int) -> int:
    return max(0, min(interval[1], opens + span) - max(interval[0], opens))


@st.composite
def charge_lists(draw: st.DrawFn, within: int, longest_seconds: int, uncertain: int, size: int) -> list[Charge]:
    """Up to ``size`` charges, of which up to ``uncertain`` were used nobody knows when, or not at all."""
    found = []
    for number in range(draw(st.integers(0, size))):
        start = draw(st.integers(-within, within))
        end = start + draw(st.integers(1, longest_seconds))
        kind = draw(st.sampled_from(["certain", "held", "untold", "unseen"])) if number < uncertain else "certain"
        told, sign = kind not in {"untold", "unseen"}, 0 if kind == "unseen" else 1
        found.append(Charge(start, end, sign, held=kind == "held", exact=told))
    return found


# What is certain counts as it is written.

SPAN = 24


@settings(max_examples=share(300))
@given(charge_lists(40, 9, 0, 6), st.integers(-5, 50), st.integers(1, 24), st.integers(1, 30))
def test_where_all_is_past_and_told_nothing_is_thrown_away(
    charges: list[Charge], start: int, cap: int, limit: int
) -> None:
    past = [charge for charge in charges if charge.end <= start]
    used = [(charge.start, charge.end) for charge in past]

    def fits(length: int) -> bool:
        own = (start, start + length)
        return all(
            sum(overlap(one, opens, SPAN) for one in (*used, own)) <= limit
            for opens in spans_of([*used, own], SPAN)
            if overlap(own, opens, SPAN)
        )

    allowed = longest(FirstUseQuota("q", limit, SPAN), past, start, cap)
    assert allowed == max(length for length in range(cap + 1) if fits(length))


@settings(max_examples=share(300))
@given(charge_lists(40, 9, 6, 6), st.integers(-5, 50), st.integers(1, 24), st.integers(1, 30))
def test_nothing_is_overrun_when_everything_is_used_as_it_is_written(
    charges: list[Charge], start: int, cap: int, limit: int
) -> None:
    allowed = longest(FirstUseQuota("q", limit, SPAN), charges, start, cap)
    assert 0 <= allowed <= cap
    own = (start, start + allowed)
    used = [(charge.start, charge.end) for charge in charges]
    for opens in spans_of([*used, own], SPAN):
        if overlap(own, opens, SPAN):
            assert overlap(own, opens, SPAN) + sum(charge.within(opens, opens + SPAN) for charge in charges) <= limit


# What is not certain may have been used at any time inside its interval, or never.

SHORT = 6


def within(start: int, end: int) -> list[Interval]:
    return [(0, 0), *((first, last) for first in range(start, end) for last in range(first + 1, end + 1))]


def truths(charges: Sequence[Charge]) -> Iterator[tuple[Interval, ...]]:
    """Everything that may have been, one interval for each charge."""
    yield from product(
        *([(charge.start, charge.end)] if charge.is_certain else within(charge.start, charge.end) for charge in charges)
    )


def all_fit(charges: Sequence[Charge], start: int, length: int, limit: int) -> bool:
    """Whether no truth has a span overrun that the session uses, or that could not open without it."""
    known = {opens for truth in truths(charges) for opens in spans_of(truth, SHORT)}
    for truth in truths(charges):
        for own in within(start, start + length):
            used = (*truth, own)
            for opens in spans_of(used, SHORT):
                seconds = [overlap(one, opens, SHORT) for one in used]
                total = sum(n * charge.sign for n, charge in zip(seconds, charges, strict=False)) + seconds[-1]
                if total > limit and (overlap(own, opens, SHORT) or opens not in known):
                    return False
    return True


@settings(max_examples=share(120), deadline=None)
@given(charge_lists(9, 3, 2, 4), st.integers(-2, 10), st.integers(1, 4), st.integers(0, 7))
@example([Charge(0, 1, exact=False), Charge(4, 6), Charge(6, 8)], 10, 4, 4)
@example([Charge(-6, -4), Charge(-1, 1, exact=False), Charge(2, 5, held=True)], 6, 4, 5)
@example([Charge(8, 10, held=True), Charge(13, 15)], 6, 2, 3)
@example([Charge(-3, -1, sign=0, exact=False), Charge(0, 1), Charge(2, 4)], 6, 4, 4)
@example([Charge(4, 7), Charge(6, 7)], -2, 4, 2)
@example([Charge(-3, 0, sign=0, exact=False), Charge(1, 4)], 7, 1, 1)
@example([Charge(1, 4, sign=0, exact=False), Charge(6, 7), Charge(12, 15, exact=False)], 0, 1, 1)
@example([Charge(5, 7), Charge(7, 9), Charge(9, 11)], -2, 4, 4)
@example([Charge(-5, -2), Charge(0, 2)], 10, 3, 2)
@example([Charge(-8, -6, held=True), Charge(-5, -2), Charge(-1, 2), Charge(0, 1), Charge(6, 7)], 6, 1, 2)
@example([Charge(-8, -5, held=True), Charge(-8, -5, exact=False), Charge(6, 9)], -2, 2, 4)
@example([Charge(-7, -6, exact=False), Charge(2, 3), Charge(7, 9, exact=False)], 8, 2, 2)
@example([Charge(-7, -6), Charge(-7, -6, sign=0, exact=False), Charge(-9, -7, held=True), Charge(-2, 0)], 4, 2, 1)
@example(
    [Charge(-5, -1), Charge(-8, -6, exact=False), Charge(1, 2, sign=0, exact=False), Charge(-6, -3), Charge(4, 8)],
    10,
    5,
    2,
)
@example([Charge(0, 5, held=True), Charge(8, 9), Charge(-4, -3), Charge(5, 6, exact=False), Charge(7, 9)], 5, 2, 7)
@example([Charge(-6, -5), Charge(-3, -1), Charge(-1, 2), Charge(1, 4, held=True)], 2, 5, 5)
@example([Charge(-3, 2, exact=False), Charge(-1, 0, exact=False), Charge(2, 4), Charge(-5, -4)], 3, 3, 4)
@example([Charge(5, 9, held=True), Charge(4, 6)], -2, 5, 2)
@example([Charge(-14, -12), Charge(0, 3, held=True), Charge(4, 9, held=True), Charge(4, 6), Charge(-7, -6)], -2, 4, 6)
@example([Charge(-3, -2), Charge(3, 4), Charge(6, 8, exact=False), Charge(9, 11, held=True), Charge(-6, -1)], 10, 1, 3)
@example([Charge(5, 7), Charge(-5, -3, exact=False), Charge(8, 9), Charge(-9, -7)], -2, 5, 2)
def test_a_session_is_as_long_as_every_possible_truth_allows(
    charges: list[Charge], start: int, cap: int, limit: int
) -> None:
    allowed = longest(FirstUseQuota("q", limit, SHORT), charges, start, cap)
    fitting = [length for length in range(1, cap + 1) if all_fit(charges, start, length, limit)]
    assert allowed == max(fitting, default=0)


@settings(max_examples=share(120))
@given(charge_lists(40, 9, 6, 6), st.integers(-5, 50), st.integers(1, 24), st.integers(1, 30))
def test_knowing_less_never_allows_more(charges: list[Charge], start: int, cap: int, limit: int) -> None:
    quota = FirstUseQuota("q", limit, SPAN)
    past = [charge for charge in charges if charge.end <= start]
    blurred = [replace(charge, exact=False) for charge in past]
    assert longest(quota, blurred, start, cap) <= longest(quota, past, start, cap)


def test_a_span_opens_when_work_begins() -> None:
    quota, used = FirstUseQuota("q", 4 * HOUR, DAY), [Charge(9 * HOUR, 12 * HOUR)]
    assert longest(quota, used, 13 * HOUR, 12 * HOUR) == HOUR
    assert longest(quota, used, 33 * HOUR, 12 * HOUR) == 4 * HOUR
    assert longest(quota, used, 32 * HOUR, 12 * HOUR) == 5 * HOUR  # one hour in this span, four in the next
    assert meter("lab", quota, used, 20 * HOUR).start == 9 * HOUR
    assert meter("lab", quota, used, 40 * HOUR).start == 40 * HOUR
    given_up = Charge(9 * HOUR, 12 * HOUR, sign=0, exact=False)
    assert meter("lab", quota, [given_up], 20 * HOUR).start == 20 * HOUR


def test_a_use_nobody_knows_the_time_of_may_have_left_the_span_to_the_one_after_it() -> None:
    # The session at 0 h may have been over before the span of the day before closed at 0:30 h. Then the one at 20 h
    # opened a span, and has it yet at 24 h.
    quota = FirstUseQuota("q", 4 * HOUR, DAY)
    opened, told = Charge(-DAY + 1_800, -DAY + 3_600), Charge(20 * HOUR, 23 * HOUR)
    at_noon = Charge(0, HOUR)
    assert longest(quota, [opened, at_noon, told], 25 * HOUR, 12 * HOUR) == 4 * HOUR
    unknown = Charge(0, HOUR, exact=False)
    assert longest(quota, [opened, unknown, told], 25 * HOUR, 12 * HOUR) == HOUR


def test_a_span_that_opened_before_the_books_begin_may_move_all_after_it() -> None:
    # Day after day four hours across the same instant: nothing tells whether spans change before or in their middle.
    quota = FirstUseQuota("q", 4 * HOUR, DAY)
    assert LOOK_BACK_SECONDS >= BOOKS_SECONDS

    def room_after(days: int) -> int:
        crossing = [Charge(day * DAY, day * DAY + 4 * HOUR) for day in range(days)]
        last = days * DAY
        return longest(quota, [*crossing, Charge(last, last + HOUR)], last + 23 * HOUR, 12 * HOUR)

    assert room_after(10) == room_after(30) == 5 * HOUR  # an hour of them before the span closes
    assert room_after(40) == 4 * HOUR
    assert (room_after(31), room_after(32)) == (5 * HOUR, 4 * HOUR)  # the first span is known for 33 days


def test_a_limit_that_was_observed_rules_the_spans_it_covers() -> None:
    quota = FirstUseQuota("q", 4 * HOUR, DAY)
    seen = [ObservedLimit("q", 10 * HOUR, 30 * HOUR, 2 * HOUR, at=0)]
    assert longest(quota, [], 10 * HOUR, 12 * HOUR, seen) == 2 * HOUR
    assert longest(quota, [], 9 * HOUR, 12 * HOUR, seen) == 3 * HOUR  # its use may begin at ten only
    assert longest(quota, [], 30 * HOUR, 12 * HOUR, seen) == 4 * HOUR


# Which charges are certain.


@pytest.mark.parametrize(
    ("start", "end", "at", "certain"),
    [
        (1_100, 4_000, 4_200, True),
        (1_000, 4_000, 4_200, False),  # the start is filled in with the hold's
        (1_100, 4_200, 4_200, False),  # the end with the moment of writing
        (1_100, 5_000, 9_000, False),  # or with the end of the hold
    ],
)
def test_a_charge_is_certain_when_the_platform_told_both_its_ends(
    start: int, end: int, at: int, *, certain: bool
) -> None:
    entries = [
        LedgerEntry(EntryKind.HOLD, "p", "r", 1_000, 5_000, 1_000),
        LedgerEntry(EntryKind.SPEND, "p", "r", start, end, at),
    ]
    assert [charge.is_certain for charge in fold(entries[:1])["p"]] == [False]
    assert [charge.is_certain for charge in fold(entries)["p"]] == [certain]
    credit = LedgerEntry(EntryKind.ADJUST, "p", "r", 1_200, 1_300, 6_000, credit=True)
    assert not any(charge.is_certain for charge in fold([*entries, credit])["p"])
    moved = [LedgerEntry(EntryKind.HOLD, "p", "r", begins, 5_000, begins) for begins in (500, 1_100)]
    found = fold([*entries[1:], *moved])["p"]
    assert [charge.is_certain for charge in found] == [end not in {at, 5_000}], "only the first hold fills in a start"
    foreign = LedgerEntry(EntryKind.ADJUST, "p", None, 1_200, 1_300, 6_000)
    assert [charge.is_certain for charge in fold([foreign])["p"]] == [False]


def test_a_use_that_was_given_up_may_have_opened_a_span_all_the_same() -> None:
    """If it did, the next span opened an hour after the later use began, and still holds most of it."""
    quota, used = FirstUseQuota("q", 4 * HOUR, DAY), Charge(23 * HOUR, 27 * HOUR + 1_800)
    assert longest(quota, [used], 47 * HOUR, DAY) == 4 * HOUR
    given_up = Charge(0, HOUR, sign=0)
    assert longest(quota, [given_up, used], 47 * HOUR, DAY) == 1_800
    for nothing in (Charge(0, 0), Charge(0, HOUR, sign=-1)):
        assert longest(quota, [nothing, used], 47 * HOUR, DAY) == 4 * HOUR


def test_a_session_may_begin_beyond_what_32_bits_count() -> None:
    quota, beyond = FirstUseQuota("q", 4 * HOUR, DAY), 1 << 33
    assert longest(quota, [Charge(beyond, beyond + 3 * HOUR)], beyond + 4 * HOUR, 12 * HOUR) == HOUR


def test_the_second_before_a_limit_grows_is_the_last_of_the_lower_one() -> None:
    """A span that opens at 6 has the limit of before, and no turn of use lies there."""
    lower = [ObservedLimit("q", -100, 7, 5, at=0)]
    assert longest(FirstUseQuota("q", 7, SHORT), [Charge(10, 13), Charge(11, 14, held=True)], 5, 4, lower) == 3
