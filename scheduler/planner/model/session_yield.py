"""Session yield: the training seconds of a session after set-up, checkpoints and the stop margin.

Checkpoints are counted by Young's interval. It is within one and a half checkpoints of the exact rule in
``jobs.payload.lane.meter`` (0.2 % of usual sessions) and, unlike it, continuous and invertible: a longer session
never yields less.
"""

from dataclasses import dataclass
from math import ceil, sqrt

from jobs.nouns.pool import Pool
from jobs.nouns.quota import MoneyQuota
from jobs.nouns.window import DAY, HOUR
from scheduler.core.snapshot import JobView

# Tolerance for floating point where steps and seconds are rounded to whole numbers.
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """The overheads of one job in a session of one pool, in seconds.

    ``interval`` is the training time between two checkpoints; zero when a checkpoint costs nothing.
    ``minimum`` is the training time that makes a session worth a launch.
    """

    setup: int
    checkpoint: int
    margin: int
    minimum: int
    interval: float

    def useful(self, length: int) -> float:
        """Return the training seconds in a session of ``length`` seconds that ends with a checkpoint."""
        usable = length - self.setup - self.margin
        if usable <= self.interval + self.checkpoint:
            return float(max(0, usable - self.checkpoint))
        return usable * self.interval / (self.interval + self.checkpoint) if self.checkpoint else float(usable)

    def length_for(self, useful: float) -> int:
        """Return the shortest session that holds ``useful`` training seconds."""
        saves = max(1.0, useful / self.interval) if self.checkpoint else 0.0
        return self.setup + self.margin + ceil(useful + saves * self.checkpoint - TOLERANCE)

    def published_after(self, useful: float, length: int) -> int:
        """Return the second of the session at which the first ``useful`` training seconds are checkpointed."""
        end = length - self.margin
        if not self.checkpoint:
            return min(end, self.setup + ceil(useful - TOLERANCE))
        saves = max(1, ceil(useful / self.interval - TOLERANCE))
        return min(end, self.setup + ceil(saves * (self.interval + self.checkpoint)))

    def published_at(self, start: int, length: int, speed: float, before: int, step: int) -> int:
        """Return when a session of [start, start + length) that begins at step ``before`` checkpoints ``step``."""
        return start + self.published_after((step - before) / speed, length)


def terms(job: JobView, pool: Pool) -> SessionTerms:
    """Return the overheads of ``job`` on ``pool``; raises KeyError for a pool that the job may not use."""
    return terms_of(job.setup_seconds[pool.name], job.checkpoint_seconds[pool.name], pool)


def terms_of(setup: int, checkpoint: int, pool: Pool) -> SessionTerms:
    """Return the overheads on ``pool`` of a job with these set-up and checkpoint seconds."""
    return SessionTerms(
        setup=setup,
        checkpoint=checkpoint,
        margin=pool.stop_margin_seconds,
        minimum=pool.session_seconds_min,
        interval=sqrt(2.0 * checkpoint * pool.mtbf_seconds),
    )


def longest(pool: Pool) -> int:
    """Return the seconds of the longest session within one opening and one window of each quota of ``pool``."""
    seconds = pool.session_cap_seconds
    for quota in pool.quotas:
        match quota:
            case MoneyQuota(limit_microdollars=limit):
                price = pool.price_microdollars_per_hour
                allowed_seconds = limit * HOUR // price if price else seconds + pool.overrun_seconds
            case _:
                allowed_seconds = quota.limit_seconds
        seconds = min(seconds, allowed_seconds - pool.overrun_seconds)
    openings = [(hours.end - hours.start) % DAY or DAY for hours in pool.hours]
    return min([seconds, *([max(openings) - pool.overrun_seconds] if openings else [])])


def one_step(job: JobView, pool: Pool) -> int:
    """Return the seconds of the shortest session that trains one step.

    A single-session job has one step: all of its work. Raises KeyError for a pool that the job may not use.
    """
    counts = counts_taken(job, pool)
    devices = counts[-1] if counts else min(pool.devices_per_session, job.needs.devices_max)
    return terms(job, pool).length_for(1.0 / job.speed(pool.name, devices))


def too_short(job: JobView, pool: Pool) -> bool:
    """Return whether a single-session job exceeds the longest session of ``pool``. Raises KeyError as above."""
    return job.target_step == 1 and one_step(job, pool) > longest(pool)


def fits(job: JobView, pool: Pool) -> bool:
    """Return whether a session of ``pool`` has the devices that the job needs."""
    needs = job.needs
    return (
        (not pool.device_counts or any(_takes(job, count) for count in pool.device_counts))
        and needs.devices_min <= pool.devices_per_session
        and needs.fits(pool)
    )


def counts_taken(job: JobView, pool: Pool) -> tuple[int, ...]:
    """Return the device counts of ``pool`` that the job can use, each faster than all smaller ones.

    Empty for a pool without ``device_counts``. Raises KeyError for a pool that the job may not use.
    """
    counts: list[int] = []
    quickest = 0.0
    for count in pool.device_counts:
        if _takes(job, count) and job.speed(pool.name, count) > quickest:
            quickest = job.speed(pool.name, count)
            counts.append(count)
    return tuple(counts)


def _takes(job: JobView, devices: int) -> bool:
    return job.needs.devices_min <= devices <= max(job.needs.devices_min, job.needs.devices_max)


def allowed(job: JobView, pool: Pool) -> bool:
    """Return whether the job may run on ``pool`` by its settings, and its speed there is known."""
    if job.allowed_pools and pool.name not in job.allowed_pools:
        return False
    rate = job.rates.get(pool.name)
    return rate is not None and rate.steps_per_second > 0
