"""Overheads: what a session of a job on a pool is believed to lose before, between and after its training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import ceil
from typing import Any

from jobs.advice.seen import Measurement
from jobs.advice.shape import Card, Setup
from jobs.lane_report import LaneReport
from jobs.nouns.pool import Pool
from jobs.nouns.window import DAY, HOUR
from jobs.payload.lane.meter import CLOSING
from jobs.spec import JobSpec
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


# Patience: how long a command is given before its session is taken for one that makes no progress.
#
# Each bound grows from what is known of the job, so that what is slow by nature is not taken for dead:
#
# - First progress: four times what nine in ten set-ups take, and a quarter of an hour at least. A command that never
#   reported may be one that works without a word: it is given half more than all its work should take, for at most two
#   hours. One that has saved and never reported is such a command, and only its checkpoints are looked at.
# - Progress: half an hour, four steps, four saves, or four times the longest pause of earlier sessions that ended well.
# - A checkpoint: a command that ran for longer than nine in ten set-ups and a save take has had time for one. So has
#   one that ran for three quarters of the longest session of its pool, unless more set-up than that was declared:
#   sessions that were cut off before their first step would otherwise make the bound longer than any session.
#
# A job that is run whole tells nothing on its way and is judged by one thing: whether it had the time it asked for.
#
# Where the clock runs faster than real time a bound holds some real seconds at least: a process takes those to start.
FIRST_PROGRESS_SECONDS, NO_PROGRESS_SECONDS = 900, 1_800
SILENT_SECONDS_MAX = 2 * HOUR
_OFTEN = 4
_BOUND_MAX = 30 * DAY  # whatever a session or a definition says
_SILENT_SLACK = 1.5
_LONG_ENOUGH = 0.75  # of a pool's longest session
# Real seconds, where the clock is scaled.
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
    """Return the ``stall`` part of a lane's orders, in scheduled seconds and counts; None: that rule is off.

    ``quiet_seconds`` is the longest time between two steps in the job's last sessions that ended well.
    """
    from scheduler.planner.model.session_yield import longest  # here: a daemon starts without the planner

    own, stall = measured.get((spec.name, pool.name)), spec.stall
    speed = own.steps_per_second if own is not None and own.samples else spec.steps_per_hour / HOUR * pool.speed
    idle = {
        "idle_seconds": _bound(stall.idle_seconds, None, _WATCH_WALL, scale),
        "idle_below": stall.idle_below,
    }
    if spec.whole:  # it reports and saves nothing until its end; one that was cut after all its time is reported
        ended = _bound(None, 1 / speed, _SAVE_WALL, scale)
        return {
            "first_progress_seconds": None,
            "no_progress_seconds": None,
            "checkpoint_seconds": ended,
            "loss_nan": None,
            **idle,
        }
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
    """Return what a person chose (zero: nothing), or what is known."""
    bound = estimate if chosen is None else chosen
    if not bound:
        return None
    return round(min(_BOUND_MAX, bound if scale == 1 else max(bound, wall_seconds * scale)))


# What the adviser adds to a snapshot: speeds of jobs on pools where they never ran, and why a job does not fit.
ALIKE_SIGMA = 0.1
"""Relative error of a speed that other jobs of the same kind showed on the same card."""
ELSEWHERE_SIGMA = 0.2
"""Relative error of an advised speed that was scaled by what the job, or one of its kind, showed on another card."""
_STEPS_A_SAMPLE = 20  # a session's speed rests on that many steps at least


def card_of(pool: Pool) -> Card | None:
    """Return the card of a pool, by the device that its sessions expect or by its accelerator's name."""
    from jobs.advice.shape import recognised

    for words in (pool.options.get("expected_device", ""), pool.accelerator):
        if words and (card := recognised(words)) is not None:
            return card[0]
    return None


class Priors:
    """Speeds of jobs on pools where they never ran: the adviser's, corrected by what runs of the same kind showed."""

    def __init__(self, measurements: Sequence[Measurement] = ()) -> None:
        self._measurements = tuple(measurements)
        self._predictions: dict[tuple[Setup, str], tuple[float, float]] = {}

    def of(self, spec: JobSpec, pools: Iterable[Pool]) -> dict[str, tuple[float, float]]:
        """Return steps per second on one device of each pool, and their relative error.

        The adviser's, where it knows the pool's card and the job is our trainer's; else what the definition guessed.
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
        if estimate is None:  # many jobs are of one kind
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
    """Return whether the adviser may know anything of a job; it is loaded for no other."""
    return any(word.endswith("trainers/finetune.py") for word in spec.command)


def misfit(spec: JobSpec, pools: Sequence[Pool]) -> str:
    """Return what is too big for the roomiest of the pools and what would fit; nothing where one is roomy enough."""
    if not is_advised(spec) or any(pool.vram_gib >= spec.needs.vram_gib for pool in pools):
        return ""
    by_memory = [(pool.vram_gib, pool.name, pool, card) for pool in pools if (card := card_of(pool)) is not None]
    if not by_memory:
        return ""
    from jobs.advice.job import misfit as told

    _, _, pool, card = max(by_memory, key=lambda row: row[:2])
    return told(spec.command, _inputs(spec), card, pool.devices_per_session)


def seen_of_runs(
    specs: Iterable[JobSpec],
    measured: Mapping[tuple[str, str], RateRecord],
    pools: Mapping[str, Pool],
    peaks: Mapping[tuple[str, str], int] | None = None,
) -> tuple[Measurement, ...]:
    """Return what sessions of ours measured, as the adviser takes it; ``measured`` and ``peaks`` by job and pool.

    ``peaks`` are bytes that torch had in use: what libraries take beside it is added.
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
        peak = (peaks or {}).get((job, pool), 0)
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
