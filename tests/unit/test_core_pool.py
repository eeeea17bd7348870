"""Pools are open when any of their hours are; jobs at their target have nothing left, and count as far as they came."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import RollingQuota
from jobs.nouns.window import DAY, EVER, HOUR, AllTime, DailyHours, Window, merge
from jobs.spec import Needs
from scheduler.core.ledger import Charge, RunningTotal
from scheduler.core.quota import ACCOUNT, ObservedLimit, current_quotas, declared_limit, displayed_charges
from scheduler.core.snapshot import HourShare, JobView, Snapshot

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
    assert list(NIGHT.windows(8 * HOUR, 20 * HOUR)) == []


def test_hours_that_touch_or_overlap_are_one_opening() -> None:
    assert pool(NIGHT, EARLY, NOON).open_windows(0, 14 * HOUR) == [
        Window(0, 9 * HOUR),
        Window(12 * HOUR, 13 * HOUR),
    ]


def test_a_night_that_begins_on_a_named_day_ends_on_the_next() -> None:
    thursday = DailyHours("UTC", 20 * HOUR, 8 * HOUR, frozenset({3}))  # 1 January 1970 was one
    assert pool(thursday).open_windows(0, 3 * DAY) == [Window(20 * HOUR, 32 * HOUR)]


@pytest.mark.parametrize(("done", "left"), [(99, 1), (100, 0), (101, 0)])
def test_a_job_at_its_target_has_nothing_left(done: int, left: int) -> None:
    assert JobView("job", 1.0, 100, done, Needs(), {}, {}, {}).remaining_steps == left


def test_a_job_has_made_its_part_of_the_target_also_when_it_is_closed_already() -> None:
    half = JobView("half", 1.0, 100, 50, Needs(), {}, {}, {})
    others = (replace(half, name="none", target_step=0), replace(half, name="one", target_step=1, done_step=0))
    snapshot = Snapshot(0, (half, *others), (), finished={"gone": 0.25})
    told = [snapshot.progress(name) for name in ("half", "none", "one", "gone", "unheard of")]
    assert told == [0.5, 1.0, 0.0, 0.25, None]


@pytest.mark.parametrize(
    ("share", "so_far"),
    [(HourShare("g", 0.5), None), (HourShare("g", 0.5, of_seconds=1), 0.0), (HourShare("g", 0.5, 1, 4), 0.25)],
)
def test_of_hours_that_nobody_had_none_had_a_part(share: HourShare, so_far: float | None) -> None:
    assert share.so_far == so_far


def test_the_window_of_all_time_ends_with_the_last_year_that_can_be_shown() -> None:
    assert EVER.start == 0
    assert datetime.fromtimestamp(EVER.end, UTC) == datetime(9999, 1, 1, tzinfo=UTC)


def test_the_newest_limit_of_an_account_holds() -> None:
    seen = [ObservedLimit(ACCOUNT, EVER.start, EVER.end, limit, at=limit) for limit in (10, 20)]
    (quota,) = current_quotas(pool(), seen)
    assert (quota.name, declared_limit(quota)) == (ACCOUNT, 20)


def test_device_hours_are_displayed_once_for_each_device() -> None:
    charges = [Charge(0, 10, devices=2), Charge(20, 30)]
    assert list(displayed_charges(pool(), charges)) == charges
    by_device, each = replace(pool(), device_counts=(1, 2)), [Charge(0, 10)] * 2 + [Charge(20, 30)]
    plain, counted = RollingQuota("plain", 9), RollingQuota("counted", 9, by_device=True)
    for quotas, shown in (((), each), ((counted, plain), each), ((plain, counted), charges)):
        assert list(displayed_charges(replace(by_device, quotas=quotas), charges)) == shown


def test_devices_count_only_where_they_are_asked_for() -> None:
    charges = [Charge(0, 10, devices=3)]
    assert RunningTotal(charges).until(20) == 10
    assert RunningTotal(charges, by_device=True).until(20) == 30


def test_a_rolling_span_is_a_day_and_all_time_is_one_window() -> None:
    day = RollingQuota("day", 100)
    assert (day.span_seconds, day.by_device) == (DAY, False)
    assert AllTime().window_at(5) == EVER


def test_hours_without_weekdays_open_on_all_seven() -> None:
    assert len(pool(NOON).open_windows(0, 7 * DAY)) == 7


def test_windows_that_touch_are_one() -> None:
    assert merge([Window(5, 7), Window(0, 5), Window(8, 9)]) == [Window(0, 7), Window(8, 9)]
