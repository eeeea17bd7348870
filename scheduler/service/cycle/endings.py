"""Endings: the log says when and why sessions and jobs end, at warning level when it went badly.

It is read from the event log, after what happened was committed: a line is never about something that was rolled back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from scheduler.core.run import CONSEQUENCES, Outcome
from scheduler.service.outside.ports import Ports
from scheduler.store import events, runs
from scheduler.store.events import Event

_AT_ONCE = 500
_GOOD = frozenset({Outcome.FINISHED, Outcome.YIELDED, Outcome.CANCELLED})
_RUNS = frozenset(f"run.end_{outcome}" for outcome in Outcome)
_JOBS = frozenset({"job.finish", "job.fail", "job.park", "job.hold", "job.cancel", "job.release", "job.requeue"})
_BAD_STATES = frozenset({"failed", "held"})


def tell_endings(ports: Ports, after: int) -> int:
    """Log what ended after the event ``after``; return the newest event that was looked at."""
    with ports.database.read() as tx:
        newest = events.newest_id(tx)
        if newest == after:
            return after
        ended = events.tail(tx, after, _AT_ONCE, _RUNS | _JOBS)
        lines = [line for event in ended for line in _lines(tx, event)]
    for badly, text, fields in lines:
        (ports.log.warning if badly else ports.log.info)(text, **fields)
    return ended[-1].id if len(ended) == _AT_ONCE else newest


def _lines(tx: Connection, event: Event) -> list[tuple[bool, str, dict[str, Any]]]:
    """Return (whether it went badly, what is said, its fields)."""
    state = event.data.get("to") or {}
    if event.kind in _RUNS:
        outcome = Outcome(event.kind.removeprefix("run.end_"))
        run, started = runs.get(tx, event.subject), state.get("started")
        fields = {
            "run": run.key,
            "pool": run.pool,
            "outcome": str(outcome),
            "why": event.data.get("why", ""),
            "seconds": 0 if started is None else state["at"] - started,
            "jobs": {lane.job: f"{lane.outcome or ''} {lane.message}".strip() for lane in run.lanes},
        }
        return [(outcome not in _GOOD, "session.ended", fields)]
    return [_of_job(state, event)] if state.get("state") != "active" else []


def _of_job(state: Mapping[str, Any], event: Event) -> tuple[bool, str, dict[str, Any]]:
    name = str(state.get("state"))
    fields: dict[str, Any] = {"job": event.subject, "by": state.get("by") or event.by}
    why = ": ".join(str(state[part]) for part in ("why", "message") if state.get(part))
    fields |= {"why": why} if why else {}
    if run := event.data.get("run"):
        fields["run"] = run
    if name != "queued":
        # What people ask for is not bad news to them.
        return name in _BAD_STATES and event.by == "daemon", f"job.{name}", fields
    outcome = event.data.get("outcome")
    badly = outcome is not None and CONSEQUENCES[Outcome(outcome)].counts_as_failure
    if outcome is not None:
        fields["outcome"] = outcome
    if state.get("retry_at") is not None:
        fields["retry_at"] = state["retry_at"]
    return badly, "job.queued", fields
