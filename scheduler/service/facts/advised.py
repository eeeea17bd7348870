"""What the adviser adds to a snapshot: speeds of jobs on pools where they never ran, and why a job does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jobs.advice.card import Card
from jobs.advice.seen import Measurement
from jobs.advice.shape import Setup
from jobs.nouns.pool import Pool
from jobs.spec import JobSpec
from scheduler.core.throughput import PRIOR_SIGMA
from scheduler.store.rates import RateRecord

ALIKE_SIGMA = 0.1
"""Relative error of a speed that other jobs of the same kind showed on the same card."""
ELSEWHERE_SIGMA = 0.2
"""Relative error of an advised speed that was scaled by what the job, or one of its kind, showed on another card."""
_STEPS_A_SAMPLE = 20  # a session's speed rests on that many steps at least


def card_of(pool: Pool) -> Card | None:
    """Return the card of a pool, by the device that its sessions expect or by its accelerator's name."""
    from jobs.advice.card import recognised

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
    from jobs.advice.card import GIB
    from jobs.advice.job import setup_of_job
    from jobs.advice.seen import Measurement, too_quick

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
