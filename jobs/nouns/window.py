"""Windows: half-open intervals of UTC seconds, and the calendars that define them.

A window is never computed by adding 86,400 seconds to a local time, because a calendar day has 23, 24 or 25 hours. Each
local boundary is converted to UTC, so that consecutive windows cover time without gap or overlap in every zone.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo

Period = Literal["day", "week", "month"]

HOUR = 3_600
DAY = 86_400
WEEK = 604_800


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """The half-open interval [start, end) in UTC seconds; never empty."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if self.end <= self.start:
            raise ValueError(f"a window must end after it starts: [{self.start}, {self.end})")

    @property
    def seconds(self) -> int:
        """The length of the window in seconds."""
        return self.end - self.start

    def __contains__(self, instant: int) -> bool:
        return self.start <= instant < self.end

    def overlap(self, start: int, end: int) -> int:
        """Return the seconds of [start, end) inside the window."""
        return max(0, min(self.end, end) - max(self.start, start))


EVER = Window(0, 253_370_764_800)  # ends with the year 9998, so that datetime can represent its end in every zone


@dataclass(frozen=True, slots=True)
class Calendar:
    """A repeating calendar period in a zone.

    ``weekday`` (Monday is 0) and ``offset_seconds`` (wall-clock seconds after local midnight) move the boundary:
    Kaggle's week is ``Calendar("week", "UTC", weekday=5)``. ``weekday`` is ignored unless the period is a week.
    """

    period: Period
    zone: str = "UTC"
    weekday: int = 0
    offset_seconds: int = 0

    def window_at(self, instant: int) -> Window:
        """Return the window that contains ``instant``."""
        first, following = self._days_around(instant)
        return Window(self._boundary(first), self._boundary(following))

    def windows(self, start: int, end: int) -> Iterator[Window]:
        """Yield, in order, every window that overlaps [start, end)."""
        if end <= start:
            return
        first, following = self._days_around(start)
        begins = self._boundary(first)
        while begins < end:
            while (ends := self._boundary(following)) <= begins:  # the zone skipped a day at the date line
                following = self._next(following)
            yield Window(begins, ends)
            begins = ends

    def _days_around(self, instant: int) -> tuple[date, date]:
        """Return the first days of the window that contains ``instant`` and of the next window."""
        first = self._first_day(datetime.fromtimestamp(instant, _zone(self.zone)).date())
        if self._boundary(first) > instant:
            first = self._first_day(first - timedelta(days=1))
        following = self._next(first)
        while self._boundary(following) <= instant:
            first, following = following, self._next(following)
        return first, following

    def _first_day(self, day: date) -> date:
        match self.period:
            case "day":
                return day
            case "week":
                return day - timedelta(days=(day.weekday() - self.weekday) % 7)
            case "month":
                return day.replace(day=1)

    def _next(self, first: date) -> date:
        match self.period:
            case "day":
                return first + timedelta(days=1)
            case "week":
                return first + timedelta(days=7)
            case "month":
                return (first + timedelta(days=31)).replace(day=1)

    def _boundary(self, day: date) -> int:
        return _instant(self.zone, day.toordinal(), self.offset_seconds)


@dataclass(frozen=True, slots=True)
class AllTime(Calendar):
    """The calendar of a quota that never renews: one window that contains every instant."""

    period: Period = "month"

    def window_at(self, instant: int) -> Window:
        """Return the window that contains every instant."""
        del instant
        return EVER

    def windows(self, start: int, end: int) -> Iterator[Window]:
        """Yield the window, unless [start, end) is empty."""
        if end > start:
            yield EVER


@dataclass(frozen=True, slots=True)
class DailyHours:
    """Hours of the day in which a pool may be used; ``end`` before ``start`` means past midnight.

    ``start`` and ``end`` are wall-clock seconds after local midnight. An opening begins only on the ``weekdays``
    (Monday is 0).
    """

    zone: str
    start: int
    end: int
    weekdays: frozenset[int] = frozenset(range(7))

    def __str__(self) -> str:
        from jobs.duration import DAYS  # imported here, since few callers need it

        days = "" if len(self.weekdays) == 7 else ",".join(DAYS[day][:3].title() for day in sorted(self.weekdays)) + " "
        return f"{days}{clock_of(self.start)}-{clock_of(self.end)} {self.zone}"

    def windows(self, start: int, end: int) -> Iterator[Window]:
        """Yield the openings that overlap [start, end), in order."""
        day = datetime.fromtimestamp(start, _zone(self.zone)).date() - timedelta(days=1)
        while True:
            opens = _instant(self.zone, day.toordinal(), self.start)
            if opens >= end:
                return
            closing_day = day if self.end > self.start else day + timedelta(days=1)
            closes = _instant(self.zone, closing_day.toordinal(), self.end)
            if day.weekday() in self.weekdays and closes > max(opens, start):
                yield Window(opens, closes)
            day += timedelta(days=1)


def clock_of(seconds: int) -> str:
    """Return wall-clock seconds after midnight as ``08:30``."""
    return f"{seconds // 3_600:02d}:{seconds % 3_600 // 60:02d}"


def merge(windows: Iterable[Window]) -> list[Window]:
    """Return the windows in order; windows that touch or overlap are joined."""
    merged: list[Window] = []
    for window in sorted(windows):
        if merged and window.start <= merged[-1].end:
            merged[-1] = Window(merged[-1].start, max(merged[-1].end, window.end))
        else:
            merged.append(window)
    return merged


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


@lru_cache(maxsize=65_536)
def _instant(zone: str, ordinal: int, offset_seconds: int) -> int:
    """Return the UTC second of a local time; a time that a clock change skips moves by the jump (02:30 to 03:30)."""
    local = datetime.fromordinal(ordinal) + timedelta(seconds=offset_seconds)
    return int(local.replace(tzinfo=_zone(zone)).timestamp())
