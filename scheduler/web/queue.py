"""Queue: the jobs with what each waits for, and one job with all there is to know about it."""

from __future__ import annotations

import math
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from scheduler.core.job import Active
from scheduler.core.why import in_queue
from scheduler.store import checkpoints, counts, generations, jobs, queue_waits, rates, runs, series, training_data
from scheduler.views.documents import checkpoint_json, job_json, listed_job_json, run_json, wait_json
from scheduler.views.share_now import share_now
from scheduler.web.shapes import JobDetail, JobRow, Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from scheduler.core.reasons import Reason
    from scheduler.store.checkpoints import CheckpointRecord
    from scheduler.store.jobs import JobRecord
    from scheduler.web.paging import Paging
    from scheduler.web.source import Source

STATES = ("active", "queued", "held", "failed", "done", "cancelled")
_RUNS_SHOWN = 20
_CHECKPOINTS_SHOWN = 50


def queue(source: Source, paging: Paging, state: str | None = None, part: str = "") -> Queue:
    """Return a page of the jobs in queue order, in one state if asked, whose names hold ``part``."""
    with source.read() as tx:
        found, total = jobs.page(tx, paging.rows, paging.offset, {state} if state else (), part)
        states = counts.jobs_by_state(tx)
        shown = rows(source, tx, found)
    return Queue(jobs=shown, total=total, page=paging.number, pages=paging.pages(total), states=states)


def rows(source: Source, tx: Connection, found: Sequence[JobRecord]) -> list[JobRow]:
    """Return jobs as the API shows them."""
    return [JobRow(**document) for document in _shown(source, tx, found, listed_job_json)]


def job(source: Source, name: str) -> JobDetail:
    """Return one job. Raises UnknownJob."""
    with source.read() as tx:
        record = jobs.get(tx, name)
        saved = checkpoints.everything(tx, name)
        sessions, _ = runs.page(tx, _RUNS_SHOWN, job=name)
        curve = series.curve(series.of_job(tx, name, record.fenced_attempt + 1))
        (document,) = _shown(source, tx, [record], job_json)
        found = {
            **document,
            "training": source.trainings(tx, [record], source.now)[0],
            "share": share_now(tx, name),
            "training_data": training_data.of_job(tx, name),
            "told": [(one.step, one.loss) for one in curve if one.loss is not None],
            "sessions": [next(points).step for _, points in groupby(curve, attrgetter("attempt"))],
            "speeds": rates.of_job(tx, name),
            "losses": losses([one for one in saved if one.manifest.attempt > record.fenced_attempt]),
            "generations": generations.of_job(tx, name),
            "checkpoints": [checkpoint_json(found) for found in saved[:_CHECKPOINTS_SHOWN]],
            "runs": [run_json(run) for run in queue_waits.shown(tx, sessions)],
        }
    return JobDetail.model_validate(found)


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


def _shown(
    source: Source,
    tx: Connection,
    found: Sequence[JobRecord],
    document_of: Callable[[JobRecord, Reason | None], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return the documents of jobs, each with why the job is where it is, in a sentence."""
    reasons, places = source.reasons(tx), source.places(tx)
    run_of = {record.spec.name: record.state.run for record in found if isinstance(record.state, Active)}
    waits = queue_waits.of(tx, run_of.values())
    documents = []
    for record in found:
        name = record.spec.name
        run, reason = run_of.get(name, ""), reasons.get(name)
        wait = waits.get(run)
        if wait is None:
            why = source.why(record.state, reason, places.get(name))
        else:
            why = in_queue(record.last_pool or "", run, wait, source.zone)
        documents.append({**document_of(record, reason), "why": why, "waiting": wait_json(wait)})
    return documents
