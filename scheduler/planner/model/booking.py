"""Booking: a planned session in terms of job and pool indices. A case keeps one object per distinct session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.core.plan import Placement, PlannedLane

if TYPE_CHECKING:
    from scheduler.planner.model.case import PlannerJob
    from scheduler.planner.model.pool_capacity import PoolCapacity

Lanes = tuple[tuple[int, int, int], ...]  # job, devices, steps

# The cache of bookings is cleared when it holds this many.
BOOKINGS_MAX = 100_000


class Booking:
    """A session on ``pool`` during [start, end), compared by identity.

    ``lanes`` are (job, devices, steps). ``use`` is (start, end of the quota hold, places) on the pool.
    ``order`` is the sort key of a schedule.
    """

    __slots__ = ("end", "jobs", "lanes", "order", "placement", "pool", "start", "use")

    def __init__(self, pool: int, lanes: Lanes, placement: Placement, use: tuple[int, int, int]) -> None:
        self.pool, self.lanes, self.placement, self.use = pool, lanes, placement, use
        self.jobs = [job for job, _, _ in lanes]
        self.start, self.end = placement.start, placement.end
        self.order = placement.start, placement.pool, placement.lanes[0].job


class Bookings:
    """Cache of the bookings of one case."""

    def __init__(self, jobs: Sequence[PlannerJob], capacities: Sequence[PoolCapacity]) -> None:
        self._jobs, self._capacities = jobs, capacities
        self._cache: dict[tuple[int, int, int, Lanes], Booking] = {}
        self._job_index: dict[str, int] = {}
        self._pool_index = {capacity.pool.name: number for number, capacity in enumerate(capacities)}

    def of(self, pool: int, start: int, end: int, lanes: Lanes) -> Booking:
        """Return the booking of ``lanes`` on ``pool`` during [start, end); the same arguments give the same object."""
        key = (pool, start, end, lanes)
        booking = self._cache.get(key)
        if booking is None:
            if len(self._cache) >= BOOKINGS_MAX:
                self._cache.clear()
            capacity = self._capacities[pool]
            named = tuple(PlannedLane(self._jobs[job].view.name, devices, steps) for job, devices, steps in lanes)
            placement = Placement(capacity.pool.name, start, end, named)
            places = capacity.places_of(placement.devices)
            booking = Booking(pool, lanes, placement, (start, end + capacity.pool.overrun_seconds, places))
            self._cache[key] = booking
        return booking

    def read(self, placement: Placement) -> Booking:
        """Return the booking of ``placement``; raises KeyError for a job or a pool that the case does not have."""
        if not self._job_index:
            self._job_index = {job.view.name: job.index for job in self._jobs}
        lanes = tuple((self._job_index[lane.job], lane.devices, lane.steps) for lane in placement.lanes)
        return self.of(self._pool_index[placement.pool], placement.start, placement.end, lanes)
