"""Counts: how many jobs are in each state and how many sessions are live, read in a millisecond."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sqlalchemy import func, select

from scheduler.store.schema import jobs, runs

if TYPE_CHECKING:
    from sqlalchemy import Connection

_JOBS = select(jobs.c.state, func.count().label("many")).group_by(jobs.c.state)
_LIVE = select(func.count()).select_from(runs).where(runs.c.state != "ended")


def jobs_by_state(tx: Connection) -> Counter[str]:
    """Return the number of jobs in each state that has any (queued, active, held, done, failed, cancelled)."""
    return Counter({row.state: row.many for row in tx.execute(_JOBS)})


def live_sessions(tx: Connection) -> int:
    """Return the number of runs that are reserved, submitted, running or stopping."""
    return int(tx.execute(_LIVE).scalar_one())
