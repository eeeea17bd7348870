"""Overheads: what a session of a job on a pool is believed to lose before, between and after its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import ceil
from typing import Any

from jobs.payload.lane.meter import CLOSING
from jobs.spec import JobSpec
from scheduler.core.pool import Pool
from scheduler.core.throughput import PRIOR_SIGMA, Estimate, within
from scheduler.store.rates import RateRecord


@dataclass(frozen=True, slots=True)
class Overhead:
    """``setup_seconds`` lie between the launch and the first step; the sigmas are relative spreads between sessions."""

    setup_seconds: int
    setup_sigma: float
    checkpoint_seconds: int
    checkpoint_sigma: float

    @property
    def closing_seconds(self) -> int:
        """What a session's last checkpoint is given: what nine in ten take, and a quarter over the mean at least."""
        sure = within(self.checkpoint_seconds, self.checkpoint_sigma)
        return max(sure, ceil(CLOSING * self.checkpoint_seconds))


_PARTS = tuple(field.name for field in fields(Overhead))


class Overheads:
    """Beliefs by job and pool, from what was measured and, until then, from what was declared.

    A job that has not run on a pool is believed to lose there what is declared, or what the others that have trained
    there usually lose if that is more. What a job never reached is no measurement for others. Its save takes nowhere
    less than where it took least: a large checkpoint is large everywhere.

    ``queues`` has by pool the seconds from launch to start of the session that waits there longest, as its platform
    expects it: so long a further one is believed to wait, if nothing worse was seen.
    """

    def __init__(self, measured: Mapping[tuple[str, str], RateRecord], queues: Mapping[str, int] | None = None) -> None:
        self.measured = measured
        self._queues = queues or {}
        self._jobs = {job for job, _ in measured}
        self._alike: dict[tuple[object, ...], dict[str, Any]] = {}

    @cached_property
    def _usual(self) -> dict[str, tuple[int, ...]]:
        """What jobs that have trained on a pool usually lose there: delay, set-up, checkpoint."""
        by_pool: dict[str, list[RateRecord]] = {}
        for (_, pool), rate in self.measured.items():
            if rate.samples:
                by_pool.setdefault(pool, []).append(rate)
        return {
            pool: tuple(
                sorted(getattr(rate, name) for rate in rates)[len(rates) // 2]
                for name in ("delay_seconds", "setup_seconds", "checkpoint_seconds")
            )
            for pool, rates in by_pool.items()
        }

    @cached_property
    def _saves(self) -> dict[str, int]:
        """The shortest save that was seen of each job, on whichever pool."""
        shortest: dict[str, int] = {}
        for (job, _), rate in self.measured.items():
            if rate.samples:
                shortest[job] = min(rate.checkpoint_seconds, shortest.get(job, rate.checkpoint_seconds))
        return shortest

    def on(self, spec: JobSpec, pools: Sequence[Pool]) -> dict[str, Any]:
        """Return each part of an Overhead by pool, as JobView names them; what was never measured shares one answer.

        Among 1,000 jobs and 200 pools hardly any pair was measured, and a belief of each pair would fill the memory.
        """
        alike = (spec.setup_seconds, spec.checkpoint_seconds, *(pool.name for pool in pools))
        lost = None if spec.name in self._jobs else self._alike.get(alike)
        if lost is None:
            by_pool = {pool.name: self.of(spec, pool) for pool in pools}
            lost = {part: {name: getattr(one, part) for name, one in by_pool.items()} for part in _PARTS}
            if spec.name not in self._jobs:
                self._alike[alike] = lost
        return lost

    def of(self, spec: JobSpec, pool: Pool) -> Overhead:
        """Return what is believed of a job on a pool: what was seen, as long as the pool's longest session is worth it.

        One session that hung must not shut the pool to its job: nothing could be seen there again that teaches better.
        """
        # Here, as in the snapshot: a daemon starts without the planner.
        from scheduler.planner.model.session_yield import longest, terms_of

        def room_beside(checkpoint: int) -> int:  # in the longest session, beside the least training worth a launch
            return longest(pool) - terms_of(0, max(1, checkpoint), pool).length_for(pool.session_seconds_min)

        rate = self.measured.get((spec.name, pool.name))
        estimate = self.prior(spec, pool) if rate is None else rate.estimate
        declared = pool.start_delay_seconds + pool.setup_seconds + spec.setup_seconds
        room = room_beside(estimate.checkpoint_seconds)
        checkpoint, delay = estimate.checkpoint_seconds, max(estimate.delay_seconds, self._queues.get(pool.name, 0))
        if room < declared:
            checkpoint = min(checkpoint, spec.checkpoint_seconds)
            room = room_beside(checkpoint)
        return Overhead(
            setup_seconds=min(delay + estimate.setup_seconds, max(room, declared)),
            setup_sigma=estimate.setup_sigma,
            checkpoint_seconds=checkpoint if rate is None else max(1, checkpoint),
            checkpoint_sigma=estimate.checkpoint_sigma,
        )

    def prior(self, spec: JobSpec, pool: Pool) -> Estimate:
        """Return what is believed of a job that has not run on a pool."""
        delay, setup, checkpoint = self._usual.get(pool.name, (0, 0, 0))
        return Estimate(
            steps_per_second=0.0,
            sigma=PRIOR_SIGMA,
            samples=0,
            setup_seconds=max(setup, pool.setup_seconds + spec.setup_seconds),
            checkpoint_seconds=max(checkpoint, spec.checkpoint_seconds, self._saves.get(spec.name, 0)),
            delay_seconds=max(delay, pool.start_delay_seconds),
        )
