"""Codes: the jobs' own code in the artifact store, and when what nobody needs any more may go.

A row is written before anything is sent to the store, and removed after everything is deleted there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import bindparam, delete, insert, select, true, update

from scheduler.store import jobs
from scheduler.store.errors import Refused
from scheduler.store.schema import checkpoints, codes, lanes

if TYPE_CHECKING:
    from sqlalchemy import Connection


class CodeGoes(Refused):
    """The same code is being deleted just now."""

    def __init__(self, digest: str) -> None:
        why = "nobody needed it any more, and its files are being deleted from the artifact store"
        super().__init__(
            "code not taken", digest[:12], why, "Try again in a minute; the daemon must run to finish that"
        )


@dataclass(frozen=True, slots=True)
class StoredCode:
    """One code by its digest: when it goes, None while somebody needs it; whether it is being deleted."""

    digest: str
    delete_at: int | None
    going: bool


_ALL = select(codes.c.digest, codes.c.delete_at, codes.c.going).order_by(codes.c.digest)
_ONE = _ALL.where(codes.c.digest == bindparam("digest"))
_INSERT = insert(codes)
_CHANGE = (
    update(codes)
    .where(codes.c.digest == bindparam("b_digest"))
    .values(delete_at=bindparam("new_delete_at"), going=bindparam("new_going"))
)
_REMOVE = delete(codes).where(codes.c.digest == bindparam("b_digest"))
_OF_ATTEMPT = select(lanes.c.code).where(lanes.c.job == bindparam("job"), lanes.c.attempt == bindparam("attempt"))
_LIVE = select(lanes.c.code).where(lanes.c.code.is_not(None), lanes.c.live == true())
_OF_CHECKPOINTS = (
    select(lanes.c.code)
    .join(checkpoints, (checkpoints.c.job == lanes.c.job) & (checkpoints.c.attempt == lanes.c.attempt))
    .where(lanes.c.code.is_not(None), checkpoints.c.state != "expired")
)


def everything(tx: Connection) -> list[StoredCode]:
    """Return all that may be in the artifact store."""
    return [StoredCode(*row) for row in tx.execute(_ALL)]


def note(tx: Connection, digest: str, delete_at: int | None) -> None:
    """Write down that a code is to be sent to the store, or is needed (``delete_at`` None). Raises CodeGoes."""
    found = tx.execute(_ONE, {"digest": digest}).one_or_none()
    if found is None:
        tx.execute(_INSERT, {"digest": digest, "delete_at": delete_at, "going": False})
    elif found.going:
        raise CodeGoes(digest)
    else:
        tx.execute(_CHANGE, {"b_digest": digest, "new_delete_at": delete_at, "new_going": False})


def let_go(tx: Connection, digest: str, now: int) -> None:
    """Note that it is being deleted: from here on nobody can come to need it."""
    tx.execute(_CHANGE, {"b_digest": digest, "new_delete_at": now, "new_going": True})


def forget(tx: Connection, digest: str) -> None:
    """Remove the row of what is deleted."""
    tx.execute(_REMOVE, {"b_digest": digest})


def of_attempt(tx: Connection, job: str, attempt: int) -> str | None:
    """Return the code that an attempt of a job ran; None for none."""
    digest: str | None = tx.execute(_OF_ATTEMPT, {"job": job, "attempt": attempt}).scalar_one_or_none()
    return digest


def needed(tx: Connection) -> set[str]:
    """Return the digests that a job of the queue, a live session or the run of a kept checkpoint names."""
    found = {record.spec.code.digest for record in jobs.everything(tx) if record.spec.code is not None}
    return found | set(tx.execute(_LIVE).scalars()) | set(tx.execute(_OF_CHECKPOINTS).scalars())
