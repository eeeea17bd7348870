"""Runs: the sessions, live and past, and one of them with what happened to it."""

from __future__ import annotations

from scheduler.store import events, queue_waits, runs
from scheduler.views.documents import run_json
from scheduler.web.paging import Paging
from scheduler.web.shapes import RunDetail, RunRow, Runs
from scheduler.web.source import Source

_EVENTS_SHOWN = 200


def listed(source: Source, paging: Paging, pool: str | None = None, job: str | None = None) -> Runs:
    """Return a page of the runs, newest first, of one pool or with one job if asked."""
    with source.read() as tx:
        found, total = runs.page(tx, paging.rows, paging.offset, pool, job)
        found = queue_waits.shown(tx, found)
    rows = [RunRow(**run_json(run)) for run in found]
    return Runs(runs=rows, total=total, page=paging.number, pages=paging.pages(total))


def run(source: Source, key: str) -> RunDetail:
    """Return one run. Raises UnknownRun."""
    with source.read() as tx:
        (found,) = queue_waits.shown(tx, [runs.get(tx, key)])
        beats = runs.heartbeats(tx, [key])
        history = events.tail(tx, limit=_EVENTS_SHOWN, subject=key)
    return RunDetail.model_validate({**run_json(found, beats), "events": history})
