"""The event log: append-only, one row per event. IDs increase in commit order.

Only :func:`prune` deletes events, oldest first. The triggers allow this because ``pruned`` is updated before.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Select, bindparam, delete, func, insert, literal, select, update

from jobs.payload.bounds import INSTANT_MAX
from scheduler.store import codec, conditions
from scheduler.store.schema import events, pruned

_INSERT = insert(events).returning(events.c.id)
_NEWEST_ID = select(func.max(events.c.id))
_AFTER = (
    select(events.c.id, events.c.kind)
    .where(events.c.id > bindparam("after_id"))
    .order_by(events.c.id)
    .limit(bindparam("limit"))
)
_UP_TO = select(pruned.c.up_to).where(pruned.c.name == "events")
_OLD = select(events.c.id).where(events.c.at < bindparam("before")).order_by(events.c.id).limit(bindparam("limit"))
_FIRST_KEPT = select(func.min(events.c.id)).where(events.c.at >= bindparam("before"))


@dataclass(frozen=True, slots=True)
class Event:
    """An event: ``kind`` is ``<noun>.<arrow>``, ``subject`` is the noun's name or key."""

    id: int
    at: int
    kind: str
    subject: str
    by: str
    data: dict[str, Any]


_SELECT = select(*codec.columns(events, Event))
_LATEST = select(func.max(events.c.id)).where(
    events.c.subject.in_(bindparam("subjects", expanding=True)), events.c.kind.in_(bindparam("kinds", expanding=True))
)
_OF_LATEST = _SELECT.where(events.c.id.in_(_LATEST.group_by(events.c.subject)))


def append(tx: Connection, kind: str, subject: str, at: int, by: str = "daemon", **data: Any) -> int:
    """Write one event and return its id."""
    return write(tx, kind, subject, at, by, data)


def write(tx: Connection, kind: str, subject: str, at: int, by: str, data: Mapping[str, Any]) -> int:
    """Write one event and return its id; ``data`` may have any keys, also names of parameters of :func:`append`."""
    row = {"at": at, "kind": kind, "subject": subject, "by": by, "data": codec.dump(data)}
    conditions.apply(tx, kind, subject, at, data)
    return int(tx.execute(_INSERT, row).scalar_one())


def newest_id(tx: Connection, before: int = INSTANT_MAX) -> int:
    """Return the id of the newest event before an instant, 0 if there is none."""
    query = _NEWEST_ID if before == INSTANT_MAX else _NEWEST_ID.where(events.c.at < before)
    return int(tx.execute(query).scalar_one() or 0)


def kinds_after(tx: Connection, after_id: int, limit: int = 200) -> list[tuple[int, str]]:
    """Return (id, kind) of up to ``limit`` events after ``after_id``, oldest first."""
    return [(row.id, row.kind) for row in tx.execute(_AFTER, {"after_id": after_id, "limit": limit})]


def tail(
    tx: Connection,
    after_id: int | None = None,
    limit: int = 200,
    kinds: Collection[str] | None = None,
    subject: str | None = None,
) -> list[Event]:
    """Return up to ``limit`` events, oldest first: those after ``after_id`` (0: from the first), or the newest."""
    query = _tail(None if kinds is None else frozenset(kinds), subject is not None, after_id is not None)
    where: dict[str, Any] = {"limit": limit}
    if subject is not None:
        where["subject"] = subject
    if after_id is not None:
        where["after_id"] = after_id
    rows = tx.execute(query, where).all()
    if after_id is None:
        rows = rows[::-1]
    return codec.records(Event, rows)


@lru_cache(maxsize=64)
def _tail(kinds: frozenset[str] | None, of_subject: bool, from_id: bool) -> Select[Any]:  # noqa: FBT001 - a cache's key
    """Return the statement for a combination of filters; cached, so that it is compiled once."""
    query = _SELECT.limit(bindparam("limit"))
    if kinds is not None:
        query = query.where(events.c.kind.in_([literal(kind) for kind in sorted(kinds)]))
    if of_subject:
        query = query.where(events.c.subject == bindparam("subject"))
    if from_id:
        return query.where(events.c.id > bindparam("after_id")).order_by(events.c.id)
    return query.order_by(events.c.id.desc())


def latest(tx: Connection, subjects: Collection[str], *kinds: str) -> list[Event]:
    """Return the newest event of these kinds for each subject that has one."""
    values = {"subjects": sorted(subjects), "kinds": kinds}
    return codec.records(Event, tx.execute(_OF_LATEST, values)) if subjects else []


def prune(tx: Connection, before: int, limit: int) -> int:
    """Delete up to ``limit`` of the oldest events before the instant ``before``; return how many.

    A row is deleted only with all rows before it, so the remaining rows have no gaps. The newest event is kept.
    """
    first_kept = tx.execute(_FIRST_KEPT, {"before": before}).scalar() or newest_id(tx)
    old = [number for number in tx.execute(_OLD, {"before": before, "limit": limit}).scalars() if number < first_kept]
    if not old:
        return 0
    tx.execute(update(pruned).where(pruned.c.name == "events").values(up_to=old[-1]))
    tx.execute(delete(events).where(events.c.id <= old[-1]))
    return len(old)


def pruned_up_to(tx: Connection) -> int:
    """Return the highest id of the deleted events, 0 if none was deleted."""
    return int(tx.execute(_UP_TO).scalar() or 0)
