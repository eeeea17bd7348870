"""What the adviser adds to a snapshot: speeds of jobs on pools where they never ran, and why a job does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.core.throughput import PRIOR_SIGMA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from jobs.advice.card import Card
    from jobs.advice.seen import Seen
    from jobs.spec import JobSpec
    from scheduler.core.pool import Pool

ELSEWHERE_SIGMA = 0.2
"""Relative error of an advised speed that was scaled by what the job showed on another pool."""
_STEPS_A_SAMPLE = 20  # a session's speed rests on that many steps at least


def card_of(pool: Pool) -> Card | None:
    """Return the card of a pool, by the device that its sessions expect or by its accelerator's name."""
    from jobs.advice.card import recognised

    for words in (pool.options.get("expected_device", ""), pool.accelerator):
        if words and (found := recognised(words)) is not None:
            return found[0]
    return None


def prior(spec: JobSpec, pool: Pool) -> tuple[float, float]:
    """Return steps per second of a job on one device of a pool where it never ran, and their relative error.

    The adviser's, where it knows the pool's card and the job is our trainer's; else what the definition guessed.
    """
    guess = spec.steps_per_hour / 3_600 * pool.speed
    if not is_advised(spec) or (card := card_of(pool)) is None:
        return guess, PRIOR_SIGMA
    from jobs.advice.job import pace_of_job

    pace = pace_of_job(spec.command, _inputs(spec), card)
    return (guess, PRIOR_SIGMA) if pace is None else (1 / pace.step, max(PRIOR_SIGMA, pace.sigma))


def is_advised(spec: JobSpec) -> bool:
    """Tell whether the adviser may know anything of a job; it is loaded for no other."""
    return any(word.endswith("trainers/finetune.py") for word in spec.command)


def misfit(spec: JobSpec, pools: Sequence[Pool]) -> str:
    """Return what is too big for the roomiest of the pools and what would fit; nothing where one is roomy enough."""
    if not is_advised(spec) or any(pool.vram_gib >= spec.needs.vram_gib for pool in pools):
        return ""
    known = [(pool.vram_gib, pool.name, pool, card) for pool in pools if (card := card_of(pool)) is not None]
    if not known:
        return ""
    from jobs.advice.job import misfit as told

    _, _, pool, card = max(known, key=lambda found: found[:2])
    return told(spec.command, _inputs(spec), card, pool.devices_per_session)


def seen_of_runs(tx: Connection, pools: Mapping[str, Pool]) -> tuple[Seen, ...]:
    """Return what sessions of ours measured, as the adviser takes it."""
    from jobs.advice.errors import Unknown
    from jobs.advice.job import on_card, setup_of
    from jobs.advice.seen import Seen
    from scheduler.store import jobs, rates

    specs = {record.spec.name: record.spec for record in jobs.everything(tx) if is_advised(record.spec)}
    found = []
    for (job, pool), rate in sorted(rates.everything(tx).items()) if specs else ():
        spec, card = specs.get(job), card_of(pools[pool]) if pool in pools else None
        if spec is None or card is None or not rate.samples or rate.steps_per_second <= 0:
            continue
        try:
            bare = setup_of(spec.command, tuple(sorted(_inputs(spec).items())))
        except Unknown:
            continue
        if bare is None:
            continue
        setup = on_card(bare, card)
        found.append(
            Seen(
                card=card.name,
                model=setup.shape.name,
                method=setup.method,
                stack=setup.stack.name,
                checkpointing=setup.checkpointing,
                batch=setup.batch,
                seq=setup.seq,
                seconds=1 / rate.steps_per_second / setup.accumulate,
                steps=_STEPS_A_SAMPLE * rate.samples,
                at=rate.at,
                source=f"job {job} on pool {pool}",
            )
        )
    return tuple(found)


def _inputs(spec: JobSpec) -> dict[str, str]:
    return {one.name: one.source for one in spec.inputs}
