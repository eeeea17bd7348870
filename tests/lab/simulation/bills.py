"""The bills against the quotas, computed from the world's truth and not with the code under test."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, assert_never
from zoneinfo import ZoneInfo

from jobs.nouns.quota import CalendarQuota, FirstUseQuota, MoneyQuota, RollingQuota
from tests.lab.simulation.faults import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jobs.nouns.pool import Pool
    from jobs.nouns.window import Calendar

Bill = tuple[int, int]


def check_bills(pool: Pool, bills: Sequence[Bill], tolerance_seconds: int = 0, hidden: Sequence[Bill] = ()) -> None:
    """Raise Violation when a window of any quota of the pool was billed more than its limit.

    ``hidden`` bills are not counted; like all others they open the spans that begin with the first use.
    """
    bills = sorted(bill for bill in bills if bill[1] > bill[0])
    if not bills:
        return
    starts, longest = [since for since, _ in bills], max(until - since for since, until in bills)
    for quota in pool.quotas:
        match quota:
            case CalendarQuota(limit_seconds=limit, calendar=calendar):
                windows = calendar_windows(calendar, bills[0][0], max(end for _, end in bills))
            case RollingQuota(limit_seconds=limit, span_seconds=span):
                windows = ((end - span, end) for _, end in bills)
            case FirstUseQuota(limit_seconds=limit, span_seconds=span):
                windows = first_use_windows(sorted((*bills, *hidden)), span)
            case MoneyQuota(limit_microdollars=budget, calendar=calendar):
                limit = budget * 3_600 // pool.price_microdollars_per_hour
                windows = calendar_windows(calendar, bills[0][0], max(end for _, end in bills))
            case _:
                assert_never(quota)
        for start, end in windows:
            touching = bills[bisect_right(starts, start - longest) : bisect_left(starts, end)]
            used = within(touching, start, end)
            if used > limit + tolerance_seconds:
                raise Violation(
                    "bill within quota",
                    f"{pool.name} was billed {used} s of {limit} s of {quota.name} in [{start}, {end})",
                )


def within(bills: Sequence[Bill], start: int, end: int) -> int:
    """Return the billed seconds inside [start, end)."""
    return sum(max(0, min(until, end) - max(since, start)) for since, until in bills)


def first_use_windows(bills: Sequence[Bill], span: int) -> Iterator[Bill]:
    """Yield the spans that sorted bills open."""
    until = None
    for since, end in bills:
        opens = since if until is None else max(since, until)
        while opens < end:
            until = opens + span
            yield opens, until
            opens = until


def calendar_windows(calendar: Calendar, start: int, end: int) -> Iterator[Bill]:
    """Yield the calendar's windows that touch [start, end)."""
    year = datetime.fromtimestamp(start, UTC).year
    while True:
        # Years overlap by more than a window, so that none is cut at a year's end.
        found = _windows_of(calendar, year)
        for opens, closes in found[max(0, bisect_right(found, (start, start)) - 1) :]:
            if opens >= end:
                return
            if closes > start:
                yield opens, closes
                start = closes
        year += 1


@lru_cache(maxsize=256)
def _windows_of(calendar: Calendar, year: int) -> tuple[Bill, ...]:
    """Return the windows that begin from December of the year before until January of the year after."""
    zone = ZoneInfo(calendar.zone)
    day, last = date(year - 1, 11, 20), date(year + 1, 1, 31)
    edges = []
    while day <= last:
        if _begins(calendar, day):
            edges.append(_local(zone, day, calendar.offset_seconds))
        day += timedelta(days=1)
    return tuple(pairwise(edges))


def _begins(calendar: Calendar, day: date) -> bool:
    match calendar.period:
        case "day":
            return True
        case "week":
            return day.weekday() == calendar.weekday
        case "month":
            return day.day == 1


def _local(zone: ZoneInfo, day: date, offset_seconds: int) -> int:
    """Return when clocks of the zone first show that time of that day; one that is skipped counts on from the jump."""
    wanted = datetime(day.year, day.month, day.day, tzinfo=UTC).replace(tzinfo=None) + timedelta(seconds=offset_seconds)
    guess = int(wanted.replace(tzinfo=UTC).timestamp()) - 26 * 3_600
    low, high = guess, guess + 52 * 3_600
    while low < high:
        middle = (low + high) // 2
        # Clocks can go back, so a reading alone is not enough: what counts is the first time it is shown.
        if datetime.fromtimestamp(middle, zone).replace(tzinfo=None) >= wanted:
            high = middle
        else:
            low = middle + 1
    if datetime.fromtimestamp(low, zone).replace(tzinfo=None) == wanted:
        return low
    # Clocks jump at this very instant, over the time: it comes as much later as it lies past the jump's beginning.
    jumps_at = datetime.fromtimestamp(low - 1, zone).replace(tzinfo=None) + timedelta(seconds=1)
    return low + round((wanted - jumps_at).total_seconds())
