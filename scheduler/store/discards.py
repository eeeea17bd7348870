"""Discards: objects of the artifact store that are to be deleted, why, and not before when.

A row is written first, the object goes after its grace, the row last: a crash in between is made good by the next pass.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, delete, insert, select

from scheduler.store import codec
from scheduler.store.schema import discards


@dataclass(frozen=True, slots=True)
class Discard:
    """One object, by its key in the store: a manifest or a blob of ``job``. Times are scheduled UTC seconds."""

    key: str
    job: str
    why: str
    marked_at: int
    delete_at: int


_ALL = select(discards).order_by(discards.c.delete_at, discards.c.key)
_OF_JOB = _ALL.where(discards.c.job == bindparam("job"))


def everything(tx: Connection, job: str | None = None) -> list[Discard]:
    """Return what is marked, of one job if asked, by the time at which it may go."""
    return codec.records(Discard, tx.execute(_ALL) if job is None else tx.execute(_OF_JOB, {"job": job}))


def mark(tx: Connection, rows: Collection[Discard]) -> None:
    """Mark objects for deletion; none of them may be marked already."""
    if rows:
        tx.execute(insert(discards), [codec.row_of(one) for one in rows])


def forget(tx: Connection, keys: Collection[str]) -> None:
    """Remove marks: the objects are gone, or stay after all."""
    if keys:
        tx.execute(delete(discards).where(discards.c.key.in_(keys)))
