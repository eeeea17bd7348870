"""Queue: the jobs with what each waits for, and one job with all there is to know about it."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from config.secret import MARK, is_secret
from scheduler.store import checkpoints, counts, jobs, rates, runs
from scheduler.web.runs import run_row
from scheduler.web.shapes import CheckpointRow, JobDetail, JobRow, Queue, Speed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from jobs.spec import JobSpec
    from scheduler.store.checkpoints import CheckpointRecord
    from scheduler.store.jobs import JobRecord
    from scheduler.web.leaf import Leaf
    from scheduler.web.source import Source

STATES = ("active", "queued", "held", "failed", "done", "cancelled")
_RUNS_SHOWN = 20
_CHECKPOINTS_SHOWN = 50


def queue(source: Source, leaf: Leaf, state: str | None = None, part: str = "") -> Queue:
    """Return a page of the jobs in queue order, in one state if asked, whose names hold ``part``."""
    with source.read() as tx:
        found, total = jobs.page(tx, leaf.rows, leaf.offset, {state} if state else (), part)
        states = counts.jobs_by_state(tx)
        shown = rows(source, tx, found)
    return Queue(
        jobs=shown,
        total=total,
        page=leaf.number,
        pages=leaf.pages(total),
        states=states,
    )


def rows(source: Source, tx: Connection, found: Sequence[JobRecord]) -> list[JobRow]:
    """Return jobs as the API shows them."""
    return [JobRow(**_row(source, tx, record)) for record in found]


def job(source: Source, name: str) -> JobDetail:
    """Return one job. Raises UnknownJob."""
    with source.read() as tx:
        record = jobs.get(tx, name)
        saved = checkpoints.everything(tx, name)
        sessions, _ = runs.page(tx, _RUNS_SHOWN, job=name)
        return JobDetail(
            **_row(source, tx, record),
            checkpoint=record.checkpoint,
            spec=_definition(record.spec),
            speeds=_speeds(tx, name),
            losses=losses(saved),
            checkpoints=[_checkpoint(found) for found in saved[:_CHECKPOINTS_SHOWN]],
            runs=[run_row(run) for run in sessions],
        )


def losses(saved: Sequence[CheckpointRecord]) -> list[tuple[int, float]]:
    """Return (step, held-out loss) of the checkpoints that have one, by step; damaged ones prove nothing."""
    found = {
        record.manifest.step: loss
        for record in reversed(saved)
        if record.state != "quarantined"
        and (loss := record.manifest.metrics.get("held_out_loss")) is not None
        and math.isfinite(loss)
    }
    return sorted(found.items())


def _definition(spec: JobSpec) -> dict[str, Any]:
    """Return all fields of a definition; what its environment calls a secret is hidden from readers."""
    found = asdict(spec)
    found["environment"] = {name: MARK if is_secret(name) else text for name, text in spec.environment.items()}
    return found


def _row(source: Source, tx: Connection, record: JobRecord) -> dict[str, Any]:
    spec, state = record.spec, record.state
    reason = source.reasons(tx).get(spec.name)
    return {
        "name": spec.name,
        "role": spec.role,
        "position": record.position,
        "state": type(state).__name__.lower(),
        "state_detail": asdict(state),
        "why": source.why(state, reason, source.places(tx).get(spec.name)),
        "weight": spec.weight,
        "target_step": spec.target_step,
        "done_step": record.done_step,
        "attempts": record.attempts,
        "failures": record.failures,
        "last_pool": record.last_pool,
        "not_before": spec.not_before,
        "deadline": spec.deadline,
        "created_at": record.created_at,
        "waits": reason.to_json() if reason is not None else None,
    }


def _speeds(tx: Connection, name: str) -> list[Speed]:
    return [
        Speed(
            pool=rate.pool,
            steps_per_second=rate.steps_per_second,
            sigma=rate.sigma,
            samples=rate.samples,
            setup_seconds=rate.setup_seconds,
            checkpoint_seconds=rate.checkpoint_seconds,
            at=rate.at,
        )
        for rate in rates.of_job(tx, name)
    ]


def _checkpoint(record: CheckpointRecord) -> CheckpointRow:
    manifest = record.manifest
    return CheckpointRow(
        key=manifest.key,
        job=manifest.job,
        step=manifest.step,
        attempt=manifest.attempt,
        run=manifest.run,
        created_at=manifest.created_at,
        trained_seconds=manifest.trained_seconds,
        bytes=manifest.bytes,
        metrics=dict(manifest.metrics),
        state=record.state,
        why=record.why,
        pinned=record.pinned,
        seen_at=record.seen_at,
    )
