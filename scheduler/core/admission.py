"""Admission: the only function that allows the use of metered time."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.nouns.pool import Pool
from scheduler.core.ledger import Charge
from scheduler.core.quota import ObservedLimit, current_quotas, longest


@dataclass(frozen=True, slots=True)
class Room:
    """The longest session that a pool admits at one instant, and the limit that binds.

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
    """Return the longest billable session on ``devices`` that ``pool`` admits from ``start``.

    ``charges`` are all charges of the pool, holds included. ``live_ends`` are the ends of open holds, one per place in
    use. The result includes ``pool.overrun_seconds``, which the caller must hold in addition to the planned session.
    """
    places = pool.places_of(devices)
    if sum(1 for end in live_ends if end > start) + places > pool.places:
        return Room(0, "concurrency")
    best = Room(pool.session_cap_seconds + pool.overrun_seconds, "session cap")
    openings = pool.open_windows(start, start + best.seconds)
    if not openings or openings[0].start > start:
        return Room(0, "opening hours")
    if openings[0].end - start < best.seconds:
        best = Room(openings[0].end - start, "opening hours")
    for quota in current_quotas(pool, observed):
        seconds = longest(quota, charges, start, best.seconds, observed, pool.price_microdollars_per_hour, places)
        if seconds < best.seconds:
            best = Room(seconds, quota.name)
    return best
