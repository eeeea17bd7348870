"""When the next job of a kind is expected, as its user writes it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jobs.duration import coming, parse_cycle

DAY, WEEK = 86_400, 604_800
WEDNESDAY = int(datetime(2026, 11, 25, 12, tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("told", "stored"),
    [
        ("thursday", "thursday 00:00"),
        (" Thursday 9:30 ", "thursday 09:30"),
        ("12d", "12d"),
        ("1w", "7d"),
        ("1w 5d", "12d"),
    ],
)
def test_cycles_are_stored_in_one_form(told: str, stored: str) -> None:
    assert parse_cycle(told) == stored
    assert parse_cycle(stored) == stored


@pytest.mark.parametrize(
    "told", ["", "thirsday", "thursday 24:00", "thursday 9", "thursday 25:00", "every week", 7, None, True, "-12d"]
)
def test_what_is_no_cycle_is_told_what_one_is(told: object) -> None:
    with pytest.raises(ValueError, match=r'such as "thursday 09:00" \(UTC\), or a distance, such as "12d"'):
        parse_cycle(told)


@pytest.mark.parametrize("told", ["3h", "54w"])
def test_a_distance_is_at_least_a_day_and_at_most_53_weeks(told: str) -> None:
    with pytest.raises(ValueError, match="at least a day and at most 53 weeks"):
        parse_cycle(told)


def test_a_day_of_the_week_comes_every_week() -> None:
    found = coming("thursday 09:00", None, WEDNESDAY, WEDNESDAY + 2 * WEEK)
    assert [datetime.fromtimestamp(at, UTC).strftime("%a %d %H:%M") for at in found] == ["Thu 26 09:00", "Thu 03 09:00"]


def test_it_is_not_expected_at_the_very_instant_at_which_it_should_be_there() -> None:
    (first,) = coming("thursday 09:00", None, WEDNESDAY, WEDNESDAY + WEEK)
    assert coming("thursday 09:00", None, first, first + WEEK) == ()
    assert coming("thursday 09:00", None, first - 1, first + 1) == (first,)


def test_a_distance_counts_from_the_last_one_and_needs_it() -> None:
    assert coming("12d", WEDNESDAY - 10 * DAY, WEDNESDAY, WEDNESDAY + WEEK) == (WEDNESDAY + 2 * DAY,)
    assert coming("12d", WEDNESDAY - 30 * DAY, WEDNESDAY, WEDNESDAY + WEEK) == (WEDNESDAY + 6 * DAY,)
    assert coming("12d", None, WEDNESDAY, WEDNESDAY + WEEK) == ()
