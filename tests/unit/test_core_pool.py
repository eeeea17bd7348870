"""Pools are open when any of their hours are; retry delays grow, are capped and differ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.backoff import retry_delay
from scheduler.core.pool import Pool
from scheduler.core.window import DAY, HOUR, DailyHours, Window

NIGHT = DailyHours("UTC", 20 * HOUR, 8 * HOUR)
NOON = DailyHours("UTC", 12 * HOUR, 13 * HOUR)
EARLY = DailyHours("UTC", 7 * HOUR, 9 * HOUR)


def pool(*hours: DailyHours) -> Pool:
    return Pool("p", "local", "x", hours=hours)


def test_a_pool_without_hours_is_always_open() -> None:
    assert pool().open_windows(5, 10) == [Window(5, 10)]


def test_openings_are_clipped_to_what_was_asked() -> None:
    assert pool(NIGHT).open_windows(HOUR, DAY) == [Window(HOUR, 8 * HOUR), Window(20 * HOUR, DAY)]
    assert pool(NIGHT).open_windows(9 * HOUR, 19 * HOUR) == []


def test_hours_that_touch_or_overlap_are_one_opening() -> None:
    assert pool(NIGHT, EARLY, NOON).open_windows(0, 14 * HOUR) == [
        Window(0, 9 * HOUR),
        Window(12 * HOUR, 13 * HOUR),
    ]


def test_a_night_that_begins_on_a_named_day_ends_on_the_next() -> None:
    thursday = DailyHours("UTC", 20 * HOUR, 8 * HOUR, frozenset({3}))  # 1 January 1970 was one
    assert pool(thursday).open_windows(0, 3 * DAY) == [Window(20 * HOUR, 32 * HOUR)]


@given(st.text(max_size=8), st.integers(1, 60), st.integers(1, 600), st.integers(1, 7200))
def test_a_retry_delay_lies_around_the_doubled_base(name: str, failures: int, base: int, cap: int) -> None:
    wanted = min(cap, base * 2 ** (failures - 1))
    delay = retry_delay(name, failures, base, cap)
    assert max(1, round(0.75 * wanted)) <= delay <= max(1, round(1.25 * wanted))
    assert delay == retry_delay(name, failures, base, cap)


def test_jobs_that_failed_together_do_not_return_together() -> None:
    assert len({retry_delay(f"job-{number}", 3, 60, 3600) for number in range(20)}) > 10


def test_a_delay_needs_a_failure() -> None:
    with pytest.raises(ValueError, match="at least one failure"):
        retry_delay("a", 0, 60, 3600)
