"""A pool's room written plainly: every question goes through all that is planned, and nothing is remembered.

Quotas that move with every session are asked of a capacity made anew; they are held to the core by a property of their
own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from jobs.nouns.quota import CalendarQuota, FirstUseQuota, MoneyQuota, RollingQuota
from scheduler.core.admission import Room
from scheduler.core.ledger import Charge
from scheduler.planner.model.count import CalendarCount
from scheduler.planner.model.pool_capacity import NEVER, PoolCapacity
from scheduler.planner.model.pool_rules import live_ends

if TYPE_CHECKING:
    from jobs.nouns.pool import Pool
    from scheduler.core.snapshot import PoolView


@dataclass(slots=True)
class PlainPool:
    """One pool from ``now`` on; ``sessions`` are (start, end of the hold, devices, whether it is booked ahead)."""

    view: PoolView
    now: int
    until: int
    sessions: list[tuple[int, int, int, bool]] = field(default_factory=list)

    @property
    def pool(self) -> Pool:
        """The pool."""
        return self.view.pool

    def book(self, start: int, end: int, devices: int) -> None:
        """Write down a session yet to come."""
        self.sessions.append((start, end + self.pool.overrun_seconds, devices, True))

    def start_session(self, start: int, end: int, devices: int) -> None:
        """Write down a session that is started."""
        self.sessions.append((start, end + self.pool.overrun_seconds, devices, False))

    def room(self, start: int, devices: int = 0) -> Room:
        """Return the longest session that may be planned from ``start``, the overrun set aside; not what limits it."""
        pool, places, overrun = self.pool, self.pool.places_of(devices), self.pool.overrun_seconds
        opening = next((o for o in self._openings() if o[0] <= start < o[1]), None)
        if opening is None or self._taken(start) + places > pool.places:
            return Room(0, "")
        seconds = min(pool.session_cap_seconds + overrun, opening[1] - start)
        for begins, _, _, ahead in sorted(self.sessions):
            if ahead and begins > start and self._taken(begins) + places > pool.places:
                seconds = min(seconds, begins - start)
        for count in self._counts():
            seconds = min(seconds, count.longest(start, seconds, places))
        if self._moving():
            seconds = min(seconds, self._anew().room(start, devices).seconds + overrun)
        return Room(max(0, seconds - overrun), "")

    def next_change(self, after: int) -> int:
        """Return the first instant after ``after`` at which there may be more room."""
        openings = [opening for opening in self._openings() if opening[1] > after]
        if not openings:
            return NEVER
        waits = [openings[0][0], *(count.unspent_from(after) for count in self._counts())]
        ends = sorted({held for _, held, _, _ in self.sessions} | set(live_ends(self.view)))
        ends = [end for end in ends if end > after]
        if self._taken(after) >= self.pool.places:
            waits.append(next((end for end in ends if self._taken(end) < self.pool.places), NEVER))
        if max(waits) > after:
            return max(waits)
        instants = [*ends[:1], *(opens for opens, _ in openings[1:2])]
        instants += [start for count in self._counts() for start in count.starts if start > after]
        if self._moving():
            instants.append(self._anew().next_change(after))
        return min(instants, default=NEVER)

    def even(self, start: int, seconds: int, least: int, devices: int = 1) -> int:
        """Return ``seconds``, or half of what its window has left when the rest would be too short to use."""
        overrun, places = self.pool.overrun_seconds, self.pool.places_of(devices)
        left = min((count.leftover(start, places) for count in self._counts()), default=NEVER)
        if left == NEVER or not 0 < left - seconds - overrun < least + overrun:
            return seconds
        half = -(-left // 2) - overrun
        return half if least <= half < seconds else seconds

    def _taken(self, instant: int) -> int:
        planned = sum(
            self.pool.places_of(devices)
            for start, held, devices, ahead in self.sessions
            if instant < held and (start <= instant or not ahead)
        )
        return planned + sum(instant < end for end in live_ends(self.view))

    def _openings(self) -> list[tuple[int, int]]:
        opens = max(self.now, self.view.closed_until or self.now)
        end = self.until + self.pool.session_cap_seconds + self.pool.overrun_seconds
        return [(found.start, found.end) for found in self.pool.open_windows(opens, end)] if opens < end else []

    def _counts(self) -> list[CalendarCount]:
        price, end = self.pool.price_microdollars_per_hour, self.until + self.pool.session_cap_seconds
        charges = [
            Charge(start, held, True, price_microdollars_per_hour=price, devices=self.pool.places_of(devices))
            for start, held, devices, _ in self.sessions
        ]
        view = replace(self.view, charges=(*self.view.charges, *charges))
        return [
            CalendarCount(quota, view, self.now, end + self.pool.overrun_seconds)
            for quota in self.pool.quotas
            if isinstance(quota, CalendarQuota | MoneyQuota)
        ]

    def _moving(self) -> bool:
        return any(isinstance(quota, RollingQuota | FirstUseQuota) for quota in self.pool.quotas)

    def _anew(self) -> PoolCapacity:
        found = PoolCapacity(self.view, self.now, self.until)
        for start, held, devices, ahead in self.sessions:
            (found.book if ahead else found.start_session)(start, held - self.pool.overrun_seconds, devices)
        return found
