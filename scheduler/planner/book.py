"""Book: what one pool has left while a plan grows. Answers as ``core.admission.room`` does, only faster.

Calendar windows are cut once and counted down; rolling and first-use quotas, which move with every session, are
asked from the core each time.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING

from scheduler.core.admission import Room
from scheduler.core.ledger import Charge, cost_within, seconds_within
from scheduler.core.quota import (
    CalendarQuota,
    FirstUseQuota,
    MoneyQuota,
    RollingQuota,
    declared_limit,
    limit_at,
    longest,
)

if TYPE_CHECKING:
    from scheduler.core.snapshot import PoolView
    from scheduler.core.window import Window

NEVER = 1 << 62


class Count:
    """One calendar quota: its windows, and the seconds or micro-dollars still free in each."""

    __slots__ = ("_free", "_money", "_price", "_starts", "_windows", "name")

    def __init__(self, quota: CalendarQuota | MoneyQuota, view: PoolView, start: int, until: int) -> None:
        self.name = quota.name
        self._money = isinstance(quota, MoneyQuota)
        self._price = view.pool.price_microdollars_per_hour
        self._windows = list(quota.calendar.windows(start, until))
        self._starts = [window.start for window in self._windows]
        used = cost_within if self._money else seconds_within
        charged_until = max((charge.end for charge in view.charges), default=start)
        self._free = [
            lowest_limit(quota, view, window, start)
            - (used(view.charges, window) if window.start < charged_until else 0)
            for window in self._windows
        ]

    def copy(self) -> Count:
        """Return a copy whose counts change on their own."""
        twin = object.__new__(Count)
        twin.name, twin._money, twin._price = self.name, self._money, self._price
        twin._windows, twin._starts = self._windows, self._starts
        twin._free = self._free.copy()
        return twin

    def longest(self, start: int, cap: int) -> int:
        """Return the longest session from ``start``, at most ``cap``."""
        if self._money and self._price <= 0:
            return cap
        index = bisect_right(self._starts, start) - 1
        end = start + cap
        while index < len(self._windows):
            window = self._windows[index]
            begins = max(window.start, start)
            if begins >= end:
                break
            free = self._seconds(index)
            if free < min(window.end, end) - begins:
                return begins + free - start
            index += 1
        return cap

    def left_alone(self, start: int) -> int:
        """Return what is free in the window at ``start`` if all of it can be used before the window ends."""
        index = bisect_right(self._starts, start) - 1
        free = self._seconds(index)
        return free if start + free <= self._windows[index].end else NEVER

    def take(self, start: int, end: int) -> None:
        """Count a session against every window it touches."""
        index = bisect_right(self._starts, start) - 1
        while index < len(self._windows) and self._windows[index].start < end:
            seconds = self._windows[index].overlap(start, end)
            self._free[index] -= -(-seconds * self._price // 3_600) if self._money else seconds
            index += 1

    def free_in(self, start: int) -> int:
        """Return the seconds free in the window that begins at ``start``, or that holds it."""
        return self._seconds(bisect_right(self._starts, max(start, self._starts[0])) - 1)

    def unspent_from(self, instant: int) -> int:
        """Return the first instant from ``instant`` on in whose window something is free."""
        index = bisect_right(self._starts, instant) - 1
        while index < len(self._windows) and self._seconds(index) == 0:
            index += 1
            instant = self._starts[index] if index < len(self._starts) else NEVER
        return instant

    def next_start(self, after: int) -> int:
        """Return when the next window begins."""
        index = bisect_right(self._starts, after)
        return self._starts[index] if index < len(self._starts) else NEVER

    def _seconds(self, index: int) -> int:
        free = max(0, self._free[index])
        if self._money:
            return free * 3_600 // self._price if self._price > 0 else NEVER
        return free


class Book:
    """The room of one pool from ``start`` on. Copies share what never changes."""

    __slots__ = (
        "_begins",
        "_charges",
        "_closes",
        "_edges",
        "_ends",
        "_finishes",
        "_flexible",
        "_openings",
        "counts",
        "pool",
        "view",
    )

    def __init__(self, view: PoolView, start: int, until: int) -> None:
        self.view = view
        self.pool = pool = view.pool
        until += pool.session_cap_seconds + pool.overrun_seconds
        closed = max(start, view.closed_until or start)
        self._openings = (
            [(opening.start, opening.end) for opening in pool.open_windows(closed, until)] if (closed < until) else []
        )
        self._closes = [closes for _, closes in self._openings]
        self.counts = [
            Count(quota, view, start, until) for quota in pool.quotas if isinstance(quota, CalendarQuota | MoneyQuota)
        ]
        self._flexible = [quota for quota in pool.quotas if isinstance(quota, RollingQuota | FirstUseQuota)]
        self._charges = list(view.charges)
        self._edges = sorted(edge for charge in view.charges for edge in self._edges_of(charge))
        self._ends = [run.held_until for run in view.live if run.held_until > start]
        # Of the sessions yet to come that are booked; each list is in order by itself.
        self._begins: list[int] = []
        self._finishes: list[int] = []

    def copy(self) -> Book:
        """Return a book that can be written in without touching this one."""
        twin = object.__new__(Book)
        twin.view, twin.pool, twin._flexible = self.view, self.pool, self._flexible
        twin._openings, twin._closes = self._openings, self._closes
        twin.counts = [count.copy() for count in self.counts]
        twin._charges = self._charges.copy()
        twin._edges = self._edges
        twin._ends = self._ends.copy()
        twin._begins, twin._finishes = self._begins.copy(), self._finishes.copy()
        return twin

    def room(self, start: int) -> Room:
        """Return the longest session that may be planned from ``start``, the pool's overrun already set aside."""
        overrun = self.pool.overrun_seconds
        index = bisect_right(self._closes, start)  # the opening at ``start``, or else the next one
        if index == len(self._openings) or self._openings[index][0] > start:
            return Room(0, "opening hours")
        if len(self._ends) >= self.pool.sessions_max and self._running(start) >= self.pool.sessions_max:
            return Room(0, "concurrency")
        seconds, limited_by = self.pool.session_cap_seconds + overrun, "session cap"
        if self._closes[index] - start < seconds:
            seconds, limited_by = self._closes[index] - start, "opening hours"
        if self._begins:
            seconds = min(seconds, self._until_booked(start))
        for count in self.counts:
            found = count.longest(start, seconds)
            if found < seconds:
                seconds, limited_by = found, count.name
        price = self.pool.price_microdollars_per_hour
        for quota in self._flexible:
            found = longest(quota, self._charges, start, seconds, self.view.observed, price)
            if found < seconds:
                seconds, limited_by = found, quota.name
        return Room(max(0, seconds - overrun), limited_by)

    def _until_booked(self, start: int) -> int:
        """Return how long a session from ``start`` leaves all booked ones their place."""
        if self._flexible:
            return 0  # what a session in between takes from those after it is not worked out
        most = self.pool.sessions_max
        if self._running(start) + self._booked(start) >= most:
            return 0
        for instant in self._begins[bisect_right(self._begins, start) :]:
            if self._running(instant) + self._booked(instant) >= most:
                return instant - start
        return NEVER

    def _booked(self, instant: int) -> int:
        """Return how many of the sessions booked ahead run at ``instant``."""
        return bisect_right(self._begins, instant) - bisect_right(self._finishes, instant)

    def _running(self, instant: int) -> int:
        """Return how many of the sessions that have been started still run at ``instant``."""
        return sum(end > instant for end in self._ends)

    def book(self, start: int, end: int) -> None:
        """Write down a session yet to come, which later ones must leave its place and its quota."""
        held = end + self.pool.overrun_seconds
        for count in self.counts:
            count.take(start, held)
        insort(self._begins, start)
        insort(self._finishes, held)

    def even(self, start: int, seconds: int, least: int) -> int:
        """Return ``seconds``, or half of what its window has left when the rest would be too short to use."""
        overrun = self.pool.overrun_seconds
        left = min((count.left_alone(start) for count in self.counts), default=NEVER)
        if left == NEVER or not 0 < left - seconds - overrun < least + overrun:
            return seconds
        half = -(-left // 2) - overrun
        return half if least <= half < seconds else seconds

    def take(self, start: int, end: int) -> None:
        """Write a session down; it holds the pool's overrun as well."""
        held = end + self.pool.overrun_seconds
        for count in self.counts:
            count.take(start, held)
        if self._flexible:
            charge = Charge(start, held, held=True)
            self._charges.append(charge)
            self._edges = sorted(self._edges + self._edges_of(charge))
        self._ends = [other for other in self._ends if other > start]
        self._ends.append(held)

    def next_change(self, after: int) -> int:
        """Return the first instant after ``after`` at which there may be more room."""
        index = bisect_right(self._closes, after)
        if index == len(self._openings):
            return NEVER
        # As long as one thing leaves no room at all, whatever else changes makes none.
        waits = [self._openings[index][0], *(count.unspent_from(after) for count in self.counts)]
        if self._running(after) + self._booked(after) >= self.pool.sessions_max:
            waits.append(self._vacancy(after))
        latest = max(waits)
        if latest > after:
            return latest
        instants = [end for end in self._ends if end > after]
        instants += self._finishes[bisect_right(self._finishes, after) :][:1]
        instants += [begins for begins, _ in self._openings[index + 1 : index + 2]]
        instants += [count.next_start(after) for count in self.counts]
        instants += self._edges[bisect_right(self._edges, after) :][:1]
        return min(instants, default=NEVER)

    def _vacancy(self, after: int) -> int:
        """Return the next instant at which a session ends and no booked one takes its place at once."""
        ends = sorted({end for end in (*self._ends, *self._finishes) if end > after})
        most = self.pool.sessions_max
        return next((end for end in ends if self._running(end) + self._booked(end) < most), NEVER)

    def _edges_of(self, charge: Charge) -> list[int]:
        """Return when a charge opens room again under the quotas that move with every session."""
        spans = [quota.span_seconds for quota in self._flexible]
        return [edge for span in spans for edge in (charge.start + span, charge.end, charge.end + span)]


def lowest_limit(quota: CalendarQuota | MoneyQuota, view: PoolView, window: Window, start: int) -> int:
    """Return the lowest limit any instant of ``window`` from ``start`` on is known to have."""
    if not view.observed:
        return declared_limit(quota)
    instants = {max(window.start, start)}
    for seen in view.observed:
        instants.update(edge for edge in (seen.start, seen.end) if edge in window and edge > start)
    return min(limit_at(quota, instant, view.observed) for instant in instants)
