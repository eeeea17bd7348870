"""Overheads: the time that a session of a job on a pool loses before, between and after its training."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import ceil
from typing import Any

from jobs.advice.seen import Measurement
from jobs.advice.shape import Card, Setup
from jobs.grouping import grouped
from jobs.lane_report import GpuMetrics, LaneReport
from jobs.nouns.pool import Pool
from jobs.nouns.window import DAY, HOUR
from jobs.payload.lane.meter import CLOSING
from jobs.spec import JobSpec
from scheduler.core.throughput import PRIOR_SIGMA, Estimate, within
from scheduler.store.rates import RateRecord


@dataclass(frozen=True, slots=True)
class Overhead:
    """``setup_seconds`` are from the launch to the first step; the sigmas are relative differences between sessions."""

    setup_seconds: int
    setup_sigma: float
    checkpoint_seconds: int
    checkpoint_sigma: float

    @property
    def closing_seconds(self) -> int:
        """The seconds reserved for the last checkpoint: the 90 % quantile, at least a quarter above the mean."""
        sure = within(self.checkpoint_seconds, self.checkpoint_sigma)
        return max(sure, ceil(CLOSING * self.checkpoint_seconds))


_PARTS = tuple(field.name for field in fields(Overhead))


class Overheads:
    """Estimates of overheads by job and pool, from measurements, or else from the definitions of jobs and pools.

    For a job that has not run on a pool, the estimate is the declared time, or the median of the jobs that have trained
    there if that is longer. Only parts that a job has reached are measurements for others. A save is never estimated
    below the job's shortest one on any pool: a large checkpoint is large everywhere.

    ``queues`` has the longest expected time in the queue by pool, in seconds from launch to start; it is a lower bound
    of the delay there.
    """

    def __init__(self, measured: Mapping[tuple[str, str], RateRecord], queues: Mapping[str, int] | None = None) -> None:
        self.measured = measured
        self._queues = queues or {}
        self._jobs = {job for job, _ in measured}
        self._alike: dict[tuple[object, ...], dict[str, Any]] = {}

    @cached_property
    def _usual(self) -> dict[str, tuple[int, ...]]:
        """The median of delay, set-up and checkpoint seconds by pool, of jobs that have trained there."""
        by_pool = grouped((pool, rate) for (_, pool), rate in self.measured.items() if rate.samples)
        return {
            pool: tuple(
                sorted(getattr(rate, name) for rate in rates)[len(rates) // 2]
                for name in ("delay_seconds", "setup_seconds", "checkpoint_seconds")
            )
            for pool, rates in by_pool.items()
        }

    @cached_property
    def _saves(self) -> dict[str, int]:
        """The shortest save of each job on any pool, in seconds."""
        shortest: dict[str, int] = {}
        for (job, _), rate in self.measured.items():
            if rate.samples:
                shortest[job] = min(rate.checkpoint_seconds, shortest.get(job, rate.checkpoint_seconds))
        return shortest

    def on(self, spec: JobSpec, pools: Sequence[Pool]) -> dict[str, Any]:
        """Return each part of an Overhead by pool, as in JobView; jobs without measurements share their results.

        With 1,000 jobs and 200 pools few pairs are measured, and an estimate for each pair would fill the memory.
        """
        alike = (spec.setup_seconds, spec.checkpoint_seconds, *(pool.name for pool in pools))
        parts = None if spec.name in self._jobs else self._alike.get(alike)
        if parts is None:
            by_pool = {pool.name: self.of(spec, pool) for pool in pools}
            parts = {part: {name: getattr(one, part) for name, one in by_pool.items()} for part in _PARTS}
            if spec.name not in self._jobs:
                self._alike[alike] = parts
        return parts

    def of(self, spec: JobSpec, pool: Pool) -> Overhead:
        """Return the estimate for a job on a pool, limited so that the pool's longest session stays useful.

        Otherwise a single session that hung would exclude the job from the pool, and no measurement could correct that.
        """
        # Imported here, because the daemon starts without the planner.
        from scheduler.planner.model.session_yield import longest, terms_of

        def room_beside(checkpoint: int) -> int:  # in the longest session, without the shortest useful training
            return longest(pool) - terms_of(0, max(1, checkpoint), pool).length_for(pool.session_seconds_min)

        rate = self.measured.get((spec.name, pool.name))
        estimate = rate or self.prior(spec, pool)
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
        """Return the estimate for a job that has not run on a pool."""
        delay, setup, checkpoint = self._usual.get(pool.name, (0, 0, 0))
        return Estimate(
            steps_per_second=0.0,
            sigma=PRIOR_SIGMA,
            samples=0,
            setup_seconds=max(setup, pool.setup_seconds + spec.setup_seconds),
            checkpoint_seconds=max(checkpoint, spec.checkpoint_seconds, self._saves.get(spec.name, 0)),
            delay_seconds=max(delay, pool.start_delay_seconds),
        )


# Patience: the time after which a session counts as stalled.
#
# Each bound grows with what is known of the job, so that a slow job does not count as stalled:
#
# |- First progress: four times the 90 % quantile of set-ups, and at least 15 minutes. A command that never reported may
# | be one that does not report: it gets 1.5 times the expected time of all its work, at most two hours. One that has |
# saved and never reported is such a command, and only its checkpoints count. |- Progress: half an hour, four steps,
# four saves, or four times the longest pause of earlier sessions that ended well. |- A checkpoint: a command that ran
# longer than the 90 % quantile of a set-up and a save had time for one. So had one | that ran for three quarters of the
# longest session of its pool, unless a longer set-up was declared: sessions that | were cut off before their first step
# would otherwise make the bound longer than any session.
#
# A single-session job reports nothing in between; only whether it had the time it asked for counts.
#
# On a scaled clock each bound is at least some real seconds, because a process needs these to start.
FIRST_PROGRESS_SECONDS, NO_PROGRESS_SECONDS = 900, 1_800
SILENT_SECONDS_MAX = 2 * HOUR
_OFTEN = 4
_BOUND_MAX = 30 * DAY  # the maximum for any report or definition
_SILENT_SLACK = 1.5
_LONG_ENOUGH = 0.75  # share of a pool's longest session
# Real seconds; used if the clock is scaled.
_WATCH_WALL, _SAVE_WALL = 8.0, 1.5


def patience(
    spec: JobSpec,
    pool: Pool,
    overhead: Overhead,
    measured: Mapping[tuple[str, str], RateRecord],
    *,
    done_step: int,
    quiet_seconds: float,
    scale: float,
) -> dict[str, Any]:
    """Return the ``stall`` part of a lane's launch document, in scheduled seconds and counts; None: that rule is off.

    ``quiet_seconds`` is the longest time between two steps in the job's last sessions that ended well.
    """
    from scheduler.planner.model.session_yield import longest  # here: the daemon starts without the planner

    own, stall = measured.get((spec.name, pool.name)), spec.stall
    speed = own.steps_per_second if own is not None and own.samples else spec.steps_per_hour / HOUR * pool.speed
    idle = {"idle_seconds": _bound(stall.idle_seconds, None, _WATCH_WALL, scale), "idle_below": stall.idle_below}
    if spec.whole:  # it reports and saves nothing before its end; the limit applies to its whole time
        ended = _bound(None, 1 / speed, _SAVE_WALL, scale)
        off = dict.fromkeys(("first_progress_seconds", "no_progress_seconds", "loss_nan"))
        return {**off, "checkpoint_seconds": ended, **idle}
    reports = any(rate.samples for (job, _), rate in measured.items() if job == spec.name)
    setup = within(overhead.setup_seconds, overhead.setup_sigma)
    first: float | None = max(FIRST_PROGRESS_SECONDS, _OFTEN * setup)
    if not reports:
        work = setup + _SILENT_SLACK * (spec.target_step - done_step) / speed
        first = None if done_step else max(first or 0, min(work, SILENT_SECONDS_MAX))
    declared = pool.setup_seconds + spec.setup_seconds + overhead.closing_seconds
    save = min(setup + overhead.closing_seconds, max(_LONG_ENOUGH * longest(pool), declared))
    progress = max(NO_PROGRESS_SECONDS, _OFTEN * max(1 / speed, overhead.closing_seconds, quiet_seconds))
    return {
        "first_progress_seconds": _bound(stall.first_progress_seconds, first, _WATCH_WALL, scale),
        "no_progress_seconds": _bound(stall.no_progress_seconds, progress, _WATCH_WALL, scale),
        "checkpoint_seconds": _bound(stall.checkpoint_seconds, save, _SAVE_WALL, scale),
        "loss_nan": stall.loss_nan or None,
        **idle,
    }


def quiet_seconds(reports: Iterable[LaneReport]) -> float:
    """Return the longest time between two steps that sessions reported."""
    return max((report.longest_quiet_seconds or 0.0 for report in reports), default=0.0)


def _bound(chosen: int | None, estimate: float | None, wall_seconds: float, scale: float) -> int | None:
    """Return a bound in scheduled seconds: ``chosen`` by a person, or else the estimate; None for zero."""
    bound = estimate if chosen is None else chosen
    if not bound:
        return None
    return round(min(_BOUND_MAX, bound if scale == 1 else max(bound, wall_seconds * scale)))


# The adviser's part of a snapshot: speeds of jobs on pools where they never ran, and why a job does not fit.
ALIKE_SIGMA = 0.1
"""Relative error of a speed that other jobs of the same kind showed on the same card."""
ELSEWHERE_SIGMA = 0.2
"""Relative error of an advised speed that was scaled by what the job, or one of its kind, showed on another card."""
_STEPS_A_SAMPLE = 20  # steps on which the measured speed of a session is based at least


def card_of(pool: Pool) -> Card | None:
    """Return the card of a pool, by its expected device or by its accelerator's name; None if it is not known."""
    from jobs.advice.shape import recognised

    for words in (pool.options.get("expected_device", ""), pool.accelerator):
        if words and (card := recognised(words)) is not None:
            return card[0]
    return None


class Priors:
    """Speeds of jobs on pools where they never ran: the adviser's predictions, corrected by similar runs."""

    def __init__(self, measurements: Sequence[Measurement] = ()) -> None:
        self._measurements = tuple(measurements)
        self._predictions: dict[tuple[Setup, str], tuple[float, float]] = {}

    def of(self, spec: JobSpec, pools: Iterable[Pool]) -> dict[str, tuple[float, float]]:
        """Return steps per second on one device of each pool, and their relative error.

        They are predicted if the adviser knows the pool's card and the job uses our trainer; otherwise they are the
        definition's guess.
        """
        guess = spec.steps_per_hour / 3_600
        guesses = {pool.name: (guess * pool.speed, PRIOR_SIGMA) for pool in pools}
        if is_advised(spec):
            guesses.update({pool.name: self._by_card(spec, pool, guesses[pool.name]) for pool in pools})
        return guesses

    def _by_card(self, spec: JobSpec, pool: Pool, guess: tuple[float, float]) -> tuple[float, float]:
        card = card_of(pool)
        if card is None:
            return guess
        from jobs.advice.job import setup_of_job

        setup = setup_of_job(spec.command, _inputs(spec), card)
        if setup is None:
            return guess
        estimate = self._predictions.get((setup, card.name))
        if estimate is None:  # many jobs have the same setup
            estimate = self._predictions[setup, card.name] = self._advised(setup, card)
        return estimate

    def _advised(self, setup: Setup, card: Card) -> tuple[float, float]:
        from jobs.advice.seen import pace_seen, same

        rows = same(setup, self._measurements, None)
        pace = pace_seen(setup, card, rows)
        if pace.samples:
            return 1 / pace.step, max(ALIKE_SIGMA, pace.sigma)
        return 1 / pace.step, ELSEWHERE_SIGMA if rows else max(PRIOR_SIGMA, pace.sigma)


def is_advised(spec: JobSpec) -> bool:
    """Return whether the adviser may know a job; it is imported only for such jobs."""
    return any(word.endswith("trainers/finetune.py") for word in spec.command)


def misfit(spec: JobSpec, pools: Sequence[Pool]) -> str:
    """Return why a job fits none of the pools, and the nearest setting that fits; "" if the job fits a pool."""
    if not is_advised(spec) or any(pool.vram_gib >= spec.needs.vram_gib for pool in pools):
        return ""
    by_memory = [(pool.vram_gib, pool.name, pool, card) for pool in pools if (card := card_of(pool)) is not None]
    if not by_memory:
        return ""
    from jobs.advice.job import misfit as explain_misfit

    _, _, pool, card = max(by_memory, key=lambda row: row[:2])
    return explain_misfit(spec.command, _inputs(spec), card, pool.devices_per_session)


def seen_of_runs(
    specs: Iterable[JobSpec],
    measured: Mapping[tuple[str, str], RateRecord],
    pools: Mapping[str, Pool],
    gpus: Mapping[tuple[str, str], GpuMetrics] | None = None,
) -> tuple[Measurement, ...]:
    """Return the measurements of our sessions for the adviser; ``measured`` and ``gpus`` are by job and pool.

    The memory of ``gpus`` is what torch used; that of libraries is added.
    """
    advised = {spec.name: spec for spec in specs if is_advised(spec)}
    if not advised:
        return ()
    from jobs.advice.job import setup_of_job
    from jobs.advice.seen import Measurement, too_quick
    from jobs.advice.shape import GIB

    rows = []
    for (job, pool), rate in sorted(measured.items()):
        spec, card = advised.get(job), card_of(pools[pool]) if pool in pools else None
        if spec is None or card is None or not rate.samples or rate.steps_per_second <= 0:
            continue
        setup = setup_of_job(spec.command, _inputs(spec), card)
        if setup is None:
            continue
        peak = (gpus or {}).get((job, pool), GpuMetrics()).gpu_memory_bytes or 0
        row = Measurement(
            card=card.name,
            model=setup.shape.name,
            method=setup.method,
            stack=setup.stack.name,
            checkpointing=setup.checkpointing,
            batch=setup.batch,
            seq=setup.seq,
            seconds=1 / rate.steps_per_second / setup.accumulate,
            steps=_STEPS_A_SAMPLE * rate.samples,
            peak=peak and peak + round(setup.stack.context_gib * GIB),
            at=rate.at,
            source=f"job {job} on pool {pool}",
        )
        if not too_quick(row):
            rows.append(row)
    return tuple(rows)


def _inputs(spec: JobSpec) -> dict[str, str]:
    return {one.name: one.source for one in spec.inputs}
