"""Pool capacity: what one pool has left while a plan grows; every planned session brings it to its next state."""

from __future__ import annotations

from collections.abc import Hashable

from scheduler.core.admission import Room
from scheduler.core.snapshot import PoolView
from scheduler.planner.model.capacity_state import CapacityState, first_state
from scheduler.planner.model.count import NEVER, CalendarCount
from scheduler.planner.model.pool_rules import live_ends

__all__ = ["NEVER", "PoolCapacity"]


class PoolCapacity:
    """The room of one pool from ``start`` on; with ``shared``, pools that are alike have their states in common."""

    __slots__ = ("places_of", "pool", "state", "view")

    def __init__(
        self, view: PoolView, start: int, until: int, shared: dict[Hashable, CapacityState] | None = None
    ) -> None:
        self.view, self.pool = view, view.pool
        self.places_of = view.pool.places_of if view.pool.device_counts else _one
        states = {} if shared is None else shared
        alike = _what_counts(view, start)
        self.state = states[alike].share() if alike in states else first_state(view, start, until)
        states[alike] = self.state

    def copy(self, state: CapacityState | None = None) -> PoolCapacity:
        """Return a copy that takes sessions without touching this one, from another ``state`` on if one is given."""
        twin = object.__new__(PoolCapacity)
        twin.view, twin.pool, twin.places_of = self.view, self.pool, self.places_of
        twin.state = (state or self.state).with_bounded_cache()
        return twin

    @property
    def counts(self) -> list[CalendarCount]:
        """What calendar quotas have left."""
        return self.state.planned.counts

    def room(self, start: int, devices: int = 0) -> Room:
        """Return the longest session that may be planned from ``start``, the pool's overrun already set aside.

        ``devices`` are those of its lanes; 0: as few as can be.
        """
        return self.state.room(start, self.places_of(devices))

    def until_booked(self, start: int) -> int:
        """Return how long a session from ``start`` leaves all booked ones their place."""
        return self.state.until_booked(start)

    def next_change(self, after: int) -> int:
        """Return the first instant after ``after`` at which there may be more room."""
        return self.state.next_change(after)[0]

    def book(self, start: int, end: int, devices: int = 1) -> None:
        """Write down a session yet to come, which later ones must leave its place and its quota."""
        self.state = self.state.with_booked(((start, end + self.pool.overrun_seconds, self.places_of(devices)),))

    def take(self, start: int, end: int, devices: int = 1) -> None:
        """Write a session down; it holds the pool's overrun as well."""
        self.state = self.state.after((start, end + self.pool.overrun_seconds, self.places_of(devices)))

    def even(self, start: int, seconds: int, least: int, devices: int = 1) -> int:
        """Return ``seconds``, or half of what its window has left when the rest would be too short to use."""
        overrun = self.pool.overrun_seconds
        free = self.state.leftover(start, self.places_of(devices))
        if free == NEVER or not 0 < free - seconds - overrun < least + overrun:
            return seconds
        half = -(-free // 2) - overrun
        return half if least <= half < seconds else seconds


def _one(devices: int) -> int:
    """Return the places of a session where each has one, without asking the pool: walks ask a million times."""
    del devices
    return 1


def _what_counts(view: PoolView, start: int) -> Hashable:
    """Return all that a pool's states stand on."""
    pool = view.pool
    return (
        pool.quotas,
        pool.hours,
        pool.places,
        bool(pool.device_counts),
        pool.session_cap_seconds,
        pool.overrun_seconds,
        pool.price_microdollars_per_hour,
        view.charges,
        tuple(end for end in live_ends(view) if end > start),
        view.observed,
        view.closed_until,
    )
