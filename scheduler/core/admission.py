"""Admission: the only place that says yes to metered time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.core.ledger import Charge
from scheduler.core.pool import Pool
from scheduler.core.quota import ObservedLimit, in_force, longest


@dataclass(frozen=True, slots=True)
class Room:
    """The longest session a pool admits at one instant, and what limits it.

    ``limited_by`` is a quota's name, ``"session cap"``, ``"opening hours"`` or ``"concurrency"``.
    """

    seconds: int
    limited_by: str


def room(
    pool: Pool,
    charges: Sequence[Charge],
    live_ends: Sequence[int],
    start: int,
    observed: Sequence[ObservedLimit] = (),
    devices: int = 1,
) -> Room:
    """Return the longest chargeable session whose lanes have ``devices`` that ``pool`` admits from ``start``.

    ``charges`` are all charges of the pool, holds included; ``live_ends`` the ends of holds still open, one for each
    place that they take. The figure includes ``pool.overrun_seconds``, which the caller must hold on top of the session
    it plans.
    """
    taken = pool.places_of(devices)
    if sum(1 for end in live_ends if end > start) + taken > pool.places:
        return Room(0, "concurrency")
    found = Room(pool.session_cap_seconds + pool.overrun_seconds, "session cap")
    openings = pool.open_windows(start, start + found.seconds)
    if not openings or openings[0].start > start:
        return Room(0, "opening hours")
    if openings[0].end - start < found.seconds:
        found = Room(openings[0].end - start, "opening hours")
    for quota in in_force(pool, observed):
        seconds = longest(quota, charges, start, found.seconds, observed, pool.price_microdollars_per_hour, taken)
        if seconds < found.seconds:
            found = Room(seconds, quota.name)
    return found
