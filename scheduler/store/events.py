"""The event log: append-only, one row per thing that happened. Ids grow in the order of commits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, insert, select

from scheduler.store import codec
from scheduler.store.schema import events

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sqlalchemy import Connection

_INSERT = insert(events).returning(events.c.id)
_NEWEST_ID = select(func.max(events.c.id))
_SELECT = select(events.c.id, events.c.at, events.c.kind, events.c.subject, events.c.by, events.c.data)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: ``kind`` is ``<noun>.<arrow>``, ``subject`` the noun's name or key."""

    id: int
    at: int
    kind: str
    subject: str
    by: str
    data: dict[str, Any]


def append(tx: Connection, kind: str, subject: str, at: int, by: str = "daemon", **data: Any) -> int:
    """Write one event and return its id."""
    return write(tx, kind, subject, at, by, data)


def write(tx: Connection, kind: str, subject: str, at: int, by: str, data: Mapping[str, Any]) -> int:
    """As :func:`append`, for data whose names are not known beforehand."""
    row = {"at": at, "kind": kind, "subject": subject, "by": by, "data": codec.dump(data)}
    return int(tx.execute(_INSERT, row).scalar_one())


def newest_id(tx: Connection) -> int:
    """Return the id of the newest event, 0 when there is none."""
    return int(tx.execute(_NEWEST_ID).scalar_one() or 0)


def tail(
    tx: Connection,
    after_id: int = 0,
    limit: int = 200,
    kinds: Collection[str] | None = None,
    subject: str | None = None,
) -> list[Event]:
    """Return up to ``limit`` events, oldest first: those after ``after_id``, or the newest when it is 0."""
    query = _SELECT.limit(limit)
    if kinds is not None:
        query = query.where(events.c.kind.in_(kinds))
    if subject is not None:
        query = query.where(events.c.subject == subject)
    if after_id:
        rows = list(tx.execute(query.where(events.c.id > after_id).order_by(events.c.id)))
    else:
        rows = list(tx.execute(query.order_by(events.c.id.desc())))[::-1]
    return [Event(row.id, row.at, row.kind, row.subject, row.by, codec.load(row.data)) for row in rows]
