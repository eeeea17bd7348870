"""JobMatrix: very many jobs as NumPy columns, one row per job and one column per kind of pool.

What the planner needs to know of jobs it does not plan one by one: their density, and what they could earn at most
at given prices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scheduler.planner.model.session_yield import allowed, counts_taken, fits
from scheduler.planner.model.value import LATE_FACTOR, reference_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from scheduler.core.pool import Pool
    from scheduler.core.snapshot import JobView, Snapshot

    Floats = NDArray[np.float64]


def kind_of(pool: Pool) -> tuple[object, ...]:
    """Return what makes two pools alike to every job and in every quota but for their account."""
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
    """``rate`` are steps per charged second in the longest session a job can have on a kind; zero: not usable.

    ``lanes`` is how many of a session's devices that takes.
    """

    def __init__(self, snapshot: Snapshot, kinds: Sequence[Pool]) -> None:
        import numpy as np

        self.np: Any = np
        jobs = snapshot.jobs
        shape = (len(jobs), len(kinds))
        speed, setup, save = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        lanes = np.ones(shape)
        for column, pool in enumerate(kinds):
            single = pool.devices_per_session == 1
            rows = [row for row, job in enumerate(jobs) if allowed(job, pool) and fits(job, pool)]
            found = [jobs[row] for row in rows]
            devices = [1 if single else _thriftiest(job, pool) for job in found]
            speed[rows, column] = [job.speed(pool.name, taken) for job, taken in zip(found, devices, strict=True)]
            setup[rows, column] = [job.setup_seconds[pool.name] for job in found]
            save[rows, column] = [job.checkpoint_seconds[pool.name] for job in found]
            lanes[rows, column] = devices
        self.steps = np.asarray([job.remaining_steps for job in jobs], dtype=np.float64)
        self.worth = np.asarray([job.importance / reference_rate(job) / 3_600 for job in jobs])
        never = snapshot.now + snapshot.horizon_seconds
        self.release = np.asarray(
            [never if job.blocked else max(snapshot.now, job.not_before or 0, job.retry_at or 0) for job in jobs]
        )
        self.deadline = np.asarray([1 << 60 if job.deadline is None else job.deadline for job in jobs])
        cap = np.asarray([pool.session_cap_seconds for pool in kinds], dtype=np.float64)
        margin = np.asarray([pool.stop_margin_seconds for pool in kinds], dtype=np.float64)
        interval = np.sqrt(2 * save * np.asarray([pool.mtbf_seconds for pool in kinds]))
        with np.errstate(divide="ignore", invalid="ignore"):
            training = self.steps[:, None] / speed
            saves = np.where(save > 0, np.maximum(1.0, training / interval), 0.0)
            length = np.minimum(cap, setup + margin + training + saves * save)
            rest = length - setup - margin
            pace = np.where((save > 0) & (rest > interval + save), rest * interval / (interval + save), rest - save)
            rate = np.where(speed > 0, speed * np.maximum(0.0, pace) / length, 0.0)
        self.rate: Floats = np.nan_to_num(rate)
        self.lanes: Floats = lanes
        with np.errstate(divide="ignore"):
            # By kind and job, for each step; without end where it cannot run.
            self._lane_seconds = np.ascontiguousarray((lanes / self.rate).T)

    def density(self) -> Floats:
        """Return by job the value per lane-second where it makes most."""
        found: Floats = (self.worth[:, None] * self.rate / self.lanes).max(axis=1)
        return found

    def earnings(self, edges: Sequence[int], discount: Sequence[float], prices: Floats) -> float:
        """Return what all jobs together could earn at most beyond ``prices`` (kind by span, per lane-second)."""
        np = self.np
        best = np.zeros(len(self.steps))
        cheapest = np.empty(len(self.steps))
        for span, worth in enumerate(discount):
            cheapest.fill(np.inf)
            with np.errstate(invalid="ignore"):  # no price times no end is no number, which fmin passes over
                for kind, lane_seconds in enumerate(self._lane_seconds):
                    np.fmin(cheapest, prices[kind, span] * lane_seconds, out=cheapest)
            late = np.where(self.deadline <= edges[span], LATE_FACTOR, 1.0)
            net = self.worth * worth * late - cheapest
            np.maximum(best, np.where(self.release < edges[span + 1], net, 0.0), out=best)
        return float((best * self.steps).sum())


def _thriftiest(job: JobView, pool: Pool) -> int:
    """Return the device count with the most steps per device."""
    most = min(max(job.needs.devices_min, job.needs.devices_max), pool.devices_per_session)
    counts = counts_taken(job, pool) or range(job.needs.devices_min, most + 1)
    return max(counts, key=lambda devices: (job.speed(pool.name, devices) / devices, -devices))
