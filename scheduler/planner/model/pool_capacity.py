"""Pool capacity: the capacity that one pool has left while a plan grows. Each planned session replaces its state."""

from collections.abc import Hashable

from scheduler.core.admission import Room
from scheduler.core.snapshot import PoolView
from scheduler.planner.model.capacity_state import CapacityState, first_state
from scheduler.planner.model.count import NEVER, CalendarCount
from scheduler.planner.model.pool_rules import live_ends

__all__ = ["NEVER", "PoolCapacity"]


class PoolCapacity:
    """The capacity of one pool from ``start`` on; equal pools share the states in ``shared``."""

    __slots__ = ("places_of", "pool", "state", "view")

    def __init__(
        self, view: PoolView, start: int, until: int, shared: dict[Hashable, CapacityState] | None = None
    ) -> None:
        self.view, self.pool = view, view.pool
        self.places_of = view.pool.places_of if view.pool.device_counts else _one_place
        states = {} if shared is None else shared
        key = _capacity_key(view, start)
        self.state = states[key].share() if key in states else first_state(view, start, until)
        states[key] = self.state

    def copy(self, state: CapacityState | None = None) -> "PoolCapacity":
        """Return an independent copy, at ``state`` if one is given."""
        twin = object.__new__(PoolCapacity)
        twin.view, twin.pool, twin.places_of = self.view, self.pool, self.places_of
        twin.state = (state or self.state).with_bounded_cache()
        return twin

    @property
    def counts(self) -> list[CalendarCount]:
        """The windows of the calendar quotas, with the seconds left in each."""
        return self.state.planned.counts

    def room(self, start: int, devices: int = 0) -> Room:
        """Return the longest session that may start at ``start``, the pool's overrun already subtracted.

        ``devices`` is the sum over its lanes; 0 means the fewest that the pool gives.
        """
        return self.state.room(start, self.places_of(devices))

    def until_booked(self, start: int) -> int:
        """Return the seconds from ``start`` for which a session leaves every booked session its place."""
        return self.state.until_booked(start)

    def next_change(self, after: int) -> int:
        """Return the first instant after ``after`` at which there may be more room."""
        return self.state.next_change(after)[0]

    def book(self, start: int, end: int, devices: int = 1) -> None:
        """Book a session that starts later; its place and quota are no longer available."""
        self.state = self.state.with_booked(((start, end + self.pool.overrun_seconds, self.places_of(devices)),))

    def start_session(self, start: int, end: int, devices: int = 1) -> None:
        """Start a session; its hold includes the pool's overrun."""
        self.state = self.state.after((start, end + self.pool.overrun_seconds, self.places_of(devices)))

    def even(self, start: int, seconds: int, least: int, devices: int = 1) -> int:
        """Return ``seconds``, or half of the window's quota if a full session would leave less than ``least`` of it."""
        overrun = self.pool.overrun_seconds
        free = self.state.leftover(start, self.places_of(devices))
        if free == NEVER or not 0 < free - seconds - overrun < least + overrun:
            return seconds
        half = -(-free // 2) - overrun
        return half if least <= half < seconds else seconds


def _one_place(devices: int) -> int:
    """Return 1: the places of a session on a pool without ``device_counts``. Called a million times per plan."""
    del devices
    return 1


def _capacity_key(view: PoolView, start: int) -> Hashable:
    """Return the key that is equal for pools with equal capacity states."""
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
