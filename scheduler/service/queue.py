"""Queue: what people ask of jobs. Used by the CLI, with or without a running daemon.

These writes are not fenced by the lease: they are guarded by the job's old state, and the daemon reads them as facts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scheduler.core import job as arrows
from scheduler.core.job import IllegalArrow, JobState
from scheduler.store import jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobs.spec import JobSpec
    from scheduler.store.engine import Database
    from scheduler.store.jobs import JobRecord


class QueueError(Exception):
    """A wish that cannot be granted; the message says why and what to do next."""


def add(database: Database, specs: Sequence[JobSpec], now: int, by: str) -> list[JobRecord]:
    """Add jobs to the end of the queue, all or none. Raises DuplicateJob, QueueError."""
    with database.write() as tx:
        known = {record.spec.name for record in jobs.everything(tx)} | {spec.name for spec in specs}
        for spec in specs:
            if spec.gate is not None and spec.gate.parent not in known:
                raise QueueError(
                    f"{spec.name} waits for {spec.gate.parent}, which is not in the queue. Add {spec.gate.parent} first"
                )
        return [jobs.add(tx, spec, now, by) for spec in specs]


def hold(database: Database, name: str, why: str, now: int, by: str) -> JobRecord:
    """Hold a job; a running one saves, leaves and is then held."""
    return _change(database, name, "hold", lambda state: arrows.ask_hold(state, by, why, now), now, by)


def release(database: Database, name: str, now: int, by: str) -> JobRecord:
    """Let a held or failed job run again, with a fresh count of failures."""
    with database.write() as tx:
        jobs.get(tx, name)
        jobs.note_failures(tx, name, 0)
    return _change(database, name, "release", lambda state: arrows.release(state, now), now, by)


def cancel(database: Database, name: str, now: int, by: str) -> JobRecord:
    """Cancel a job; a running one saves and leaves first. Its checkpoints stay."""
    return _change(database, name, "cancel", lambda state: arrows.ask_cancel(state, by, now), now, by)


def change(database: Database, name: str, now: int, by: str, **fields: Any) -> JobRecord:
    """Change what people may change of a job: weight, pools, not_before, deadline, target_step."""
    with database.write() as tx:
        return jobs.change_spec(tx, name, now, by, **fields)


def move(database: Database, name: str, place: int, now: int, by: str) -> JobRecord:
    """Move a job to ``place`` (1 is the front). Equal weights are served in this order."""
    with database.write() as tx:
        return jobs.change_spec(tx, name, now, by, position=place)


def _change(database: Database, name: str, verb: str, arrow: Any, now: int, by: str) -> JobRecord:
    with database.write() as tx:
        record = jobs.get(tx, name)
        try:
            new: JobState = arrow(record.state)
        except IllegalArrow:
            state = type(record.state).__name__.lower()
            raise QueueError(f"cannot {verb} {name}: it is {state}. See: schedctl queue show {name}") from None
        jobs.change_state(tx, name, record.state, new, verb, now, by)
        return jobs.get(tx, name)
