"""Quota limits that platforms reported, and closures of pools."""

from dataclasses import asdict, dataclass

from sqlalchemy import Connection, delete, insert, select, update

from jobs.grouping import grouped
from scheduler.core.quota import ObservedLimit
from scheduler.core.reasons import Cause
from scheduler.store import codec, events
from scheduler.store.schema import closures as closures_table
from scheduler.store.schema import limits

_OBSERVED = select(limits).order_by(limits.c.pool, limits.c.at, limits.c.quota, limits.c.starts_at)
EVERY = "*"
"""The pool of the row that pauses all launches. A pool cannot have this name."""


@dataclass(frozen=True, slots=True)
class Closure:
    """A pool that is closed from ``at`` to ``until``, or until it is opened (None). Times are UTC seconds."""

    pool: str
    until: int | None
    why: str
    at: int
    cause: Cause = Cause.PERSON


_CLOSURES = select(closures_table).order_by(closures_table.c.pool)


def observe(tx: Connection, pool: str, limit: ObservedLimit) -> None:
    """Store a reading of a quota window unless a newer one is stored; event ``limit.observed`` if the limit changed."""
    window = {"pool": pool, "quota": limit.quota, "starts_at": limit.start, "ends_at": limit.end}
    same = [limits.c[name] == value for name, value in window.items()]
    row = tx.execute(select(limits.c.limit, limits.c.at).where(*same)).one_or_none()
    if row is not None and row.at > limit.at:
        return
    news = {"limit": limit.limit, "at": limit.at, "source": limit.source}
    tx.execute(insert(limits).values(window | news) if row is None else update(limits).where(*same).values(news))
    if row is None or row.limit != limit.limit:
        events.write(tx, "limit.observed", pool, limit.at, "daemon", asdict(limit))


def forget(tx: Connection, pool: str, source: str, now: int) -> None:
    """Delete the limits that ``source`` no longer reports; event ``limit.gone`` if there was one."""
    if tx.execute(delete(limits).where(limits.c.pool == pool, limits.c.source == source)).rowcount:
        events.append(tx, "limit.gone", pool, now, source=source)


def observed(tx: Connection) -> dict[str, tuple[ObservedLimit, ...]]:
    """Return the readings by pool, oldest first."""
    rows = tx.execute(_OBSERVED)
    by_pool = grouped(
        (row.pool, codec.record_of(ObservedLimit, row, start=row.starts_at, end=row.ends_at)) for row in rows
    )
    return {pool: tuple(pool_limits) for pool, pool_limits in by_pool.items()}


def close_pool(
    tx: Connection, pool: str, until: int | None, why: str, now: int, by: str = "daemon", cause: Cause = Cause.PERSON
) -> None:
    """Close a pool until an instant, or until it is opened (None); event ``pool.closed``.

    The daemon never shortens a closure: a pool that a person closed for a week stays closed for a week. If a closure is
    repeated with the same cause, its start is kept.
    """
    before = standing(tx).get(pool)
    same = before is not None and before.cause is cause and cause is not Cause.PERSON
    if before is not None and by == "daemon":
        outlasts = before.until is None or (until is not None and until < before.until)
        # A pool with such a cause opens by itself, which would end the person's closure early.
        still_closed = before.until is None or before.until > now
        opens_itself = cause.waits_for_person or cause.of_quota_reading
        replaces_person = still_closed and before.cause is Cause.PERSON and opens_itself
        if replaces_person or (outlasts and not (until is None and before.until is None and same)):
            return
    news = {"until": until, "why": why, "at": before.at if before is not None and same else now, "cause": cause}
    if not tx.execute(update(closures_table).where(closures_table.c.pool == pool).values(news)).rowcount:
        tx.execute(insert(closures_table).values(pool=pool, **news))
    events.append(tx, "pool.closed", pool, now, by, until=until, why=why, cause=cause)


def open_pool(tx: Connection, pool: str, now: int, by: str = "daemon") -> None:
    """Open a pool; event ``pool.opened`` if it was closed."""
    if tx.execute(delete(closures_table).where(closures_table.c.pool == pool)).rowcount:
        events.append(tx, "pool.opened", pool, now, by)


def closures(tx: Connection) -> dict[str, tuple[int | None, str]]:
    """Return (until, why) of every closed pool, including closures that have expired."""
    return {pool: (closure.until, closure.why) for pool, closure in standing(tx).items()}


def standing(tx: Connection) -> dict[str, Closure]:
    """Return the closures by pool, including expired ones but not the pause of all pools."""
    closures = codec.records(Closure, tx.execute(_CLOSURES))
    return {closure.pool: closure for closure in closures if closure.pool != EVERY}


def paused(tx: Connection) -> Closure | None:
    """Return a person's pause of all launches, stored as a closure of the pool :data:`EVERY`; None without a pause."""
    return next((one for one in codec.records(Closure, tx.execute(_CLOSURES)) if one.pool == EVERY), None)
