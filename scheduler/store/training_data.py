"""Training data: descriptions of the data that jobs learn from, as their sessions report them."""

from typing import Any

from sqlalchemy import Connection

from scheduler.store import events

_KIND = "training.data"


def record(tx: Connection, job: str, run: str, data: dict[str, Any] | None, now: int) -> None:
    """Write the event ``training.data`` of a job, unless its last one has the same data."""
    if data is not None and data != of_job(tx, job):
        events.append(tx, _KIND, job, now, run=run, learned=data)


def of_job(tx: Connection, job: str) -> dict[str, Any] | None:
    """Return the newest report in the form of ``jobs.payload.bounds.training_data``; None without a report."""
    newest = events.tail(tx, limit=1, kinds=[_KIND], subject=job)
    return newest[0].data["learned"] if newest else None
