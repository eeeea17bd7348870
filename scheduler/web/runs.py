"""Runs: the sessions, live and past, and one of them with what happened to it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scheduler.core.run import Ended, Running, Stopping
from scheduler.store import events, runs
from scheduler.web.shapes import EventRow, LaneRow, RunDetail, RunRow, Runs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from scheduler.core.run import Run
    from scheduler.store.events import Event
    from scheduler.web.leaf import Leaf
    from scheduler.web.source import Source

_EVENTS_SHOWN = 200


def listed(source: Source, leaf: Leaf, pool: str | None = None, job: str | None = None) -> Runs:
    """Return a page of the runs, newest first, of one pool or with one job if asked."""
    with source.read() as tx:
        found, total = runs.page(tx, leaf.rows, leaf.offset, pool, job)
    return Runs(runs=[run_row(run) for run in found], total=total, page=leaf.number, pages=leaf.pages(total))


def live_rows(tx: Connection) -> list[RunRow]:
    """Return all live runs with the heartbeats of their lanes."""
    found = runs.live(tx)
    beats = runs.heartbeats(tx, [run.key for run in found])
    return [run_row(run, beats) for run in found]


def run(source: Source, key: str) -> RunDetail:
    """Return one run. Raises UnknownRun."""
    with source.read() as tx:
        found = runs.get(tx, key)
        beats = runs.heartbeats(tx, [key])
        history = events.tail(tx, limit=_EVENTS_SHOWN, subject=key)
    return RunDetail(**_fields(found, beats), events=[event_row(event) for event in history])


def run_row(found: Run, heartbeats: Mapping[tuple[str, int], dict[str, Any]] | None = None) -> RunRow:
    """Return a run as the API shows it."""
    return RunRow(**_fields(found, heartbeats or {}))


def event_row(event: Event) -> EventRow:
    """Return an event as the API shows it."""
    return EventRow(id=event.id, at=event.at, kind=event.kind, subject=event.subject, by=event.by, data=event.data)


def _fields(found: Run, heartbeats: Mapping[tuple[str, int], dict[str, Any]]) -> dict[str, Any]:
    state = found.state
    ended = state if isinstance(state, Ended) else None
    return {
        "key": found.key,
        "pool": found.pool,
        "state": type(state).__name__.lower(),
        "state_detail": asdict(state),
        "planned_start": found.planned_start,
        "deadline": found.deadline,
        "held_until": found.held_until,
        "started": state.started if isinstance(state, Running | Stopping | Ended) else None,
        "ended": ended.at if ended else None,
        "outcome": ended.outcome if ended else None,
        "lanes": [
            LaneRow(
                index=lane.index,
                job=lane.job,
                attempt=lane.attempt,
                devices=list(lane.devices),
                restore_step=lane.restore_step,
                outcome=lane.outcome,
                end_step=lane.end_step,
                error_class=lane.error_class,
                message=lane.message,
                heartbeat=heartbeats.get((found.key, lane.index)),
            )
            for lane in found.lanes
        ],
    }
