"""What a session yields: set-up, checkpoints and the stop margin come off, the rest trains.

Checkpoints are counted by Young's interval, which is within one and a half checkpoints of the exact equal-n rule of
``jobs.payload.lane.cadence`` (two parts in a thousand of usual sessions) and, unlike it, continuous and invertible: a
longer session never yields less.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

from scheduler.core.pool import Pool
from scheduler.core.quota import MoneyQuota
from scheduler.core.snapshot import JobView
from scheduler.core.window import DAY, HOUR

# Forgives the rounding of floating point where whole steps and whole seconds are cut off.
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """The time one job loses in a session of one pool, in seconds.

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
        rest = length - self.setup - self.margin
        if rest <= self.interval + self.checkpoint:
            return float(max(0, rest - self.checkpoint))
        return rest * self.interval / (self.interval + self.checkpoint) if self.checkpoint else float(rest)

    def length_for(self, useful: float) -> int:
        """Return the shortest session that holds ``useful`` training seconds."""
        saves = max(1.0, useful / self.interval) if self.checkpoint else 0.0
        return self.setup + self.margin + ceil(useful + saves * self.checkpoint - TOLERANCE)

    def published_after(self, useful: float, length: int) -> int:
        """Return after how many seconds of the session the first ``useful`` training seconds are checkpointed."""
        end = length - self.margin
        if not self.checkpoint:
            return min(end, self.setup + ceil(useful - TOLERANCE))
        saves = max(1, ceil(useful / self.interval - TOLERANCE))
        return min(end, self.setup + ceil(saves * (self.interval + self.checkpoint)))

    def published_at(self, start: int, length: int, speed: float, before: int, step: int) -> int:
        """Return when a session of [start, start + length) that began at step ``before`` has checkpointed ``step``."""
        return start + self.published_after((step - before) / speed, length)


def terms(job: JobView, pool: Pool) -> SessionTerms:
    """Return the terms of ``job`` on ``pool``; raises KeyError for a pool the job may not use."""
    return terms_of(job.setup_seconds[pool.name], job.checkpoint_seconds[pool.name], pool)


def terms_of(setup: int, checkpoint: int, pool: Pool) -> SessionTerms:
    """Return the terms of a job that takes so many seconds on ``pool``."""
    return SessionTerms(
        setup=setup,
        checkpoint=checkpoint,
        margin=pool.stop_margin_seconds,
        minimum=pool.session_seconds_min,
        interval=sqrt(2.0 * checkpoint * pool.mtbf_seconds),
    )


def longest(pool: Pool) -> int:
    """Return the longest session that the rules of ``pool`` allow within one opening and one window of each quota."""
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
    """Return the shortest session in which a step of the job is trained; none that is shorter is of any use to it.

    That of a job which is run whole is all of its work. Raises KeyError for a pool the job may not use.
    """
    counts = counts_taken(job, pool)
    devices = counts[-1] if counts else min(pool.devices_per_session, job.needs.devices_max)
    return terms(job, pool).length_for(1.0 / job.speed(pool.name, devices))


def too_short(job: JobView, pool: Pool) -> bool:
    """Tell whether the job is all one step, and no session of ``pool`` can ever hold it. Raises KeyError likewise."""
    return job.target_step == 1 and one_step(job, pool) > longest(pool)


def fits(job: JobView, pool: Pool) -> bool:
    """Tell whether a session of ``pool`` offers what the job needs; its list of allowed pools aside."""
    needs = job.needs
    return (
        (not pool.device_counts or any(_takes(job, count) for count in pool.device_counts))
        and needs.devices_min <= pool.devices_per_session
        and needs.vram_gib <= pool.vram_gib
        and needs.dtype in pool.dtypes
    )


def counts_taken(job: JobView, pool: Pool) -> tuple[int, ...]:
    """Return, where sessions differ in their devices, the counts that the job takes: each is faster than all fewer.

    Raises KeyError for a pool the job may not use.
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
    """Tell whether the job's owner lets it run on ``pool``, and its speed there is known."""
    if job.allowed_pools and pool.name not in job.allowed_pools:
        return False
    rate = job.rates.get(pool.name)
    return rate is not None and rate.steps_per_second > 0
