"""JobMatrix: thousands of jobs as NumPy columns, one row per job and one column per kind of pool.

It gives the densities of jobs, and the most that they could earn at given prices, without planning them one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jobs.nouns.pool import Pool
from scheduler.core.snapshot import JobView, Snapshot
from scheduler.planner.model.session_yield import allowed, counts_taken, fits
from scheduler.planner.model.value import LATE_FACTOR, reference_rate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]

_ROWS = 8_192  # jobs per block, to keep the temporary arrays small


def kind_of(pool: Pool) -> tuple[object, ...]:
    """Return the key that is equal for pools that differ only in their account."""
    return (
        pool.platform,
        pool.accelerator,
        pool.quotas,
        pool.hours,
        pool.devices_per_session,
        pool.device_counts,
        pool.places,
        pool.session_cap_seconds,
        pool.session_seconds_min,
        pool.vram_gib,
        tuple(sorted(pool.dtypes)),
        pool.stop_margin_seconds,
        pool.mtbf_seconds,
        pool.sharing,
        pool.overrun_seconds,
        pool.price_microdollars_per_hour,
    )


class JobMatrix:
    """The figures of all jobs. ``fastest`` and ``density`` are zero for jobs that no kind of pool can run.

    ``fastest`` is steps per charged second of the longest session, ``density`` value per lane-second, on the best kind.
    """

    def __init__(self, snapshot: Snapshot, kinds: Sequence[Pool]) -> None:
        import numpy as np

        self.np: Any = np
        jobs = snapshot.jobs
        count = len(jobs)
        self.steps = np.fromiter((job.remaining_steps for job in jobs), np.float64, count)
        self.worth = np.fromiter((job.importance / reference_rate(job) / 3_600 for job in jobs), np.float64, count)
        never = snapshot.now + snapshot.horizon_seconds
        self.release = np.fromiter(
            (never if job.blocked else max(snapshot.now, job.not_before or 0, job.retry_at or 0) for job in jobs),
            np.int64,
            count,
        )
        self.deadline = np.fromiter(
            (1 << 60 if job.deadline is None else job.deadline for job in jobs), np.int64, count
        )
        self.fastest: Floats = np.zeros(count)
        self.density: Floats = np.zeros(count)
        # Lane-seconds per step, by kind and job; infinity where the job cannot run.
        self._lane_seconds: Floats = np.empty((len(kinds), count))
        for first in range(0, count, _ROWS):
            rows = slice(first, first + _ROWS)
            rate, lanes = _rates(np, jobs[rows], kinds, self.steps[rows])
            self.fastest[rows] = rate.max(axis=1, initial=0.0)
            self.density[rows] = (self.worth[rows, None] * rate / lanes).max(axis=1, initial=0.0)
            with np.errstate(divide="ignore"):
                self._lane_seconds[:, rows] = (lanes / rate).T

    def earnings(self, edges: Sequence[int], discount: Sequence[float], prices: Floats) -> float:
        """Return the most that all jobs together could earn above ``prices`` (kind x span, per lane-second)."""
        np = self.np
        best = np.zeros(len(self.steps))
        for worth, cheapest, released in self._spans(edges, discount, prices):
            np.maximum(best, np.where(released, worth - cheapest, 0.0), out=best)
        return float((best * self.steps).sum())

    def returns(self, edges: Sequence[int], discount: Sequence[float], prices: Floats) -> Floats:
        """Return by job the highest ratio of value to cost of a step at ``prices``; zero if it cannot run."""
        np = self.np
        best: Floats = np.zeros(len(self.steps))
        with np.errstate(divide="ignore"):
            for worth, cheapest, released in self._spans(edges, discount, prices):
                np.maximum(best, np.where(released, worth / cheapest, 0.0), out=best)
        return best

    def _spans(
        self, edges: Sequence[int], discount: Sequence[float], prices: Floats
    ) -> Iterator[tuple[Floats, Floats, Bools]]:
        """Yield for each span, by job: the value of a step, its lowest cost, and whether the job may run."""
        np = self.np
        cheapest = np.empty(len(self.steps))
        for span, worth in enumerate(discount):
            cheapest.fill(np.inf)
            with np.errstate(invalid="ignore"):  # 0 x infinity is NaN, which fmin ignores
                for kind, lane_seconds in enumerate(self._lane_seconds):
                    np.fmin(cheapest, prices[kind, span] * lane_seconds, out=cheapest)
            late = np.where(self.deadline <= edges[span], LATE_FACTOR, 1.0)
            yield self.worth * worth * late, cheapest, self.release < edges[span + 1]


def _rates(np: Any, jobs: Sequence[JobView], kinds: Sequence[Pool], steps: Floats) -> tuple[Floats, Floats]:
    """Return, by job and kind, the steps per charged second of the longest session (zero: none), and its devices."""
    shape = (len(jobs), len(kinds))
    speed, setup, save, lanes = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.ones(shape)
    for column, pool in enumerate(kinds):
        rows = [row for row, job in enumerate(jobs) if allowed(job, pool) and fits(job, pool)]
        able = [jobs[row] for row in rows]
        devices = [1] * len(rows)
        if pool.devices_per_session > 1:
            devices = [_thriftiest(job, pool) for job in able]
            lanes[rows, column] = devices
        speed[rows, column] = [job.speed(pool.name, count) for job, count in zip(able, devices, strict=True)]
        setup[rows, column] = [job.setup_seconds[pool.name] for job in able]
        save[rows, column] = [job.checkpoint_seconds[pool.name] for job in able]
    cap = np.asarray([pool.session_cap_seconds for pool in kinds], dtype=np.float64)
    margin = np.asarray([pool.stop_margin_seconds for pool in kinds], dtype=np.float64)
    interval = np.sqrt(2 * save * np.asarray([pool.mtbf_seconds for pool in kinds]))
    with np.errstate(divide="ignore", invalid="ignore"):
        training = steps[:, None] / speed
        saves = np.where(save > 0, np.maximum(1.0, training / interval), 0.0)
        length = np.minimum(cap, setup + margin + training + saves * save)
        usable = length - setup - margin
        useful = np.where((save > 0) & (usable > interval + save), usable * interval / (interval + save), usable - save)
        rate = np.where(speed > 0, speed * np.maximum(0.0, useful) / length, 0.0)
    return np.nan_to_num(rate), lanes


def _thriftiest(job: JobView, pool: Pool) -> int:
    """Return the device count with the most steps per device."""
    most = min(max(job.needs.devices_min, job.needs.devices_max), pool.devices_per_session)
    counts = counts_taken(job, pool) or range(job.needs.devices_min, most + 1)
    return max(counts, key=lambda devices: (job.speed(pool.name, devices) / devices, -devices))
