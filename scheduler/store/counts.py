"""Counts for displays and monitoring: jobs by state, live sessions, and counts that read a whole table."""

from collections import Counter

from sqlalchemy import Connection, func, select

from jobs.spec import EVALUATE
from scheduler.store.schema import checkpoints, jobs, lanes, ledger, outbox, runs

_JOBS = select(jobs.c.state, func.count().label("many")).where(jobs.c.removed_at.is_(None)).group_by(jobs.c.state)
_TRAINING = _JOBS.where(jobs.c.role != EVALUATE)
_LIVE = select(func.count()).select_from(runs).where(runs.c.state != "ended")
_OPEN = (
    select(jobs.c.name, jobs.c.done_step, jobs.c.target_step)
    .where(jobs.c.state.in_(("queued", "active", "held")))
    .order_by(jobs.c.position)
)
_OUTCOMES = (
    select(runs.c.pool, lanes.c.outcome, func.count())
    .join_from(runs, lanes)
    .where(lanes.c.outcome.is_not(None))
    .group_by(runs.c.pool, lanes.c.outcome)
    .order_by(runs.c.pool, lanes.c.outcome)
)
_CHECKPOINTS = select(checkpoints.c.state, func.count()).group_by(checkpoints.c.state).order_by(checkpoints.c.state)
_SPENT = (
    select(ledger.c.pool, func.sum(ledger.c.ends_at - ledger.c.starts_at))
    .where(ledger.c.kind == "spend")
    .group_by(ledger.c.pool)
    .order_by(ledger.c.pool)
)
_WAITING = select(func.count()).select_from(outbox).where(outbox.c.sent_at.is_(None))


def jobs_by_state(tx: Connection) -> Counter[str]:
    """Return the number of jobs by state (queued, active, held, done, failed, cancelled), without states at zero."""
    return Counter({row.state: row.many for row in tx.execute(_JOBS)})


def training_by_state(tx: Connection) -> Counter[str]:
    """Return the number of training jobs by state, without states at zero."""
    return Counter({row.state: row.many for row in tx.execute(_TRAINING)})


def live_sessions(tx: Connection) -> int:
    """Return the number of runs that are reserved, submitted, running or stopping."""
    return int(tx.execute(_LIVE).scalar_one())


def progress(tx: Connection) -> list[tuple[str, int, int]]:
    """Return (name, checkpointed steps, target steps) of every open job, in queue order."""
    return [(row[0], row[1], row[2]) for row in tx.execute(_OPEN)]


def lanes_by_outcome(tx: Connection) -> dict[tuple[str, str], int]:
    """Return the number of ended lanes by (pool, outcome)."""
    return {(row[0], row[1]): row[2] for row in tx.execute(_OUTCOMES)}


def checkpoints_by_state(tx: Connection) -> dict[str, int]:
    """Return the number of checkpoints by state: good, quarantined, expired."""
    return {row[0]: row[1] for row in tx.execute(_CHECKPOINTS)}


def spent_seconds(tx: Connection) -> dict[str, int]:
    """Return the billed seconds of all ended sessions by pool, without later corrections."""
    return {row[0]: int(row[1]) for row in tx.execute(_SPENT)}


def messages_waiting(tx: Connection) -> int:
    """Return the number of messages that are not delivered yet."""
    count: int = tx.execute(_WAITING).scalar_one()
    return count
