"""Value of planned work: V = sum of priority * urgency * speed * g(day) * late over all useful hours.

Speed is relative to the job's reference device. g falls from 1 today to 0.5 at the horizon, by UTC day. Work after a
job's deadline counts 0.3, work after the horizon 0.
"""

from collections.abc import Iterable
from itertools import chain, pairwise

from jobs.nouns.pool import Pool
from jobs.nouns.window import DAY, HOUR
from scheduler.core.plan import Placement
from scheduler.core.snapshot import JobView, Snapshot
from scheduler.planner.model.booking import Booking
from scheduler.planner.model.session_yield import terms

LATE_FACTOR = 0.3
HORIZON_FACTOR = 0.5
# The caches of session values are cleared when they hold this many.
VALUES_MAX = 100_000


class Discount:
    """The factor g(t) by which the value of an hour falls until the horizon: a step function of the UTC day."""

    def __init__(self, now: int, horizon_seconds: int) -> None:
        self._first_day = now // DAY
        self.until = now + horizon_seconds
        self._days = max(1.0, horizon_seconds / DAY)

    def at(self, instant: int) -> float:
        """Return the factor of an hour at ``instant``."""
        if instant >= self.until:
            return 0.0
        passed = min(1.0, (instant // DAY - self._first_day) / self._days)
        return 1.0 - (1.0 - HORIZON_FACTOR) * passed

    def mean(self, start: float, end: float, deadline: int | None = None) -> float:
        """Return the mean of g, lateness included, over [start, end)."""
        if end <= start:
            return 0.0
        if int(start) // DAY == int(end) // DAY and end <= self.until and (deadline is None or end <= deadline):
            return self.at(int(start))
        inner = [float(day * DAY) for day in range(int(start) // DAY + 1, int(end) // DAY + 1)]
        inner += [float(edge) for edge in (deadline, self.until) if edge is not None]
        edges = sorted({start, end, *(edge for edge in inner if start < edge < end)})
        total = 0.0
        for begin, close in pairwise(edges):
            late = LATE_FACTOR if deadline is not None and begin >= deadline else 1.0
            total += (close - begin) * late * self.at(int(begin))
        return total / (end - start)


def reference_rate(job: JobView) -> float:
    """Return the steps per second that count as speed 1: the job's reference rate, or its fastest pool's."""
    if job.reference_rate > 0:
        return job.reference_rate
    return max((rate.steps_per_second for rate in job.rates.values()), default=0.0) or 1.0


class SessionValues:
    """The values of sessions in one snapshot, cached."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._jobs = {job.name: job for job in snapshot.jobs}
        self._pools = {view.pool.name: view.pool for view in snapshot.pools}
        self._discount = Discount(snapshot.now, snapshot.horizon_seconds)
        self._cache: dict[Booking, tuple[float, ...]] = {}
        self._moments: dict[Booking, float] = {}
        self._now = snapshot.now

    def lanes(self, booking: Booking) -> tuple[float, ...]:
        """Return the value of each lane of a session."""
        values = self._cache.get(booking)
        if values is None:
            if len(self._cache) >= VALUES_MAX:
                self._cache.clear()
                self._moments.clear()
            values = self._cache[booking] = self._lanes(booking.placement)
        return values

    def total(self, bookings: Iterable[Booking]) -> float:
        """Return V of ``bookings``."""
        values = self._cache
        return sum(chain.from_iterable([values.get(booking) or self.lanes(booking) for booking in bookings]))

    def moment(self, bookings: Iterable[Booking]) -> float:
        """Return the sum over ``bookings`` of value times hours from now to the session's middle."""
        moments = self._moments
        return sum([moments.get(booking) or self._moment(booking) for booking in bookings])

    def _moment(self, booking: Booking) -> float:
        hours = ((booking.start + booking.end) / 2 - self._now) / HOUR
        moment = self._moments[booking] = sum(self.lanes(booking)) * hours
        return moment

    def of(self, placements: Iterable[Placement]) -> float:
        """Return V of ``placements``."""
        return sum(chain.from_iterable(map(self._lanes, placements)))

    def _lanes(self, placement: Placement) -> tuple[float, ...]:
        pool = self._pools[placement.pool]
        return tuple(
            lane_value(self._jobs[lane.job], pool, placement, lane.devices, lane.steps, self._discount)
            for lane in placement.lanes
        )


def value(snapshot: Snapshot, placements: Iterable[Placement]) -> float:
    """Return V of ``placements`` in useful hours of the reference device, weighted and discounted."""
    return SessionValues(snapshot).of(placements)


def lane_value(job: JobView, pool: Pool, placement: Placement, devices: int, steps: int, discount: Discount) -> float:
    """Return the value of one lane: its steps spread evenly from the end of set-up to the earliest end of its session.

    The last checkpoint and the stop margin are included, so that work is never earlier than in the LP bound.
    """
    speed = job.speed(pool.name, devices) * (pool.sharing if len(placement.lanes) > 1 else 1.0)
    job_terms = terms(job, pool)
    begin = placement.start + job_terms.setup
    end = placement.start + job_terms.length_for(steps / speed)
    hours = steps / reference_rate(job) / 3_600
    return job.importance * hours * discount.mean(begin, max(end, begin + 1), job.deadline)
