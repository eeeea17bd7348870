"""What is to be sent: written with the facts it reports, sent later, at most one per kind, period and channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, insert, select, update

from scheduler.store import codec
from scheduler.store.errors import Stale
from scheduler.store.schema import outbox

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection


@dataclass(frozen=True, slots=True)
class Letter:
    """One message to send: ``attempts`` so far, not again before ``retry_at``; ``why`` tells the last failure."""

    id: int
    kind: str
    period: str
    channel: str
    body: dict[str, Any]
    created_at: int
    attempts: int
    retry_at: int
    why: str


_KNOWN = select(outbox.c.id).where(
    outbox.c.kind == bindparam("kind"),
    outbox.c.period == bindparam("period"),
    outbox.c.channel == bindparam("channel"),
)
_OF_KIND = select(outbox.c.period, outbox.c.channel, outbox.c.sent_at).where(outbox.c.kind == bindparam("kind"))
_WORDS = _KNOWN.with_only_columns(outbox.c.sent_at, outbox.c.body)
_OLD = (
    select(outbox.c.id)
    .where(outbox.c.sent_at < bindparam("before"), outbox.c.body != "{}")
    .order_by(outbox.c.id)
    .limit(bindparam("limit"))
)
_PENDING = (
    select(
        outbox.c.id,
        outbox.c.kind,
        outbox.c.period,
        outbox.c.channel,
        outbox.c.body,
        outbox.c.created_at,
        outbox.c.attempts,
        outbox.c.retry_at,
        outbox.c.why,
    )
    .where(outbox.c.sent_at.is_(None), outbox.c.retry_at <= bindparam("now"))
    .order_by(outbox.c.id)
)
_WAITS = select(outbox.c.id).where(outbox.c.id == bindparam("id"), outbox.c.sent_at.is_(None))
_STUCK = (
    select(outbox.c.kind, outbox.c.period, outbox.c.channel, outbox.c.attempts, outbox.c.why)
    .where(outbox.c.sent_at.is_(None), outbox.c.attempts >= bindparam("attempts"))
    .order_by(outbox.c.id)
)


def add(tx: Connection, kind: str, period: str, channel: str, body: Mapping[str, Any], now: int) -> bool:
    """Put a message in the outbox; return False when this kind, period and channel has one, sent or not."""
    name = {"kind": kind, "period": period, "channel": channel}
    if tx.execute(_KNOWN, name).first() is not None:
        return False
    row = {"body": codec.dump(dict(body)), "created_at": now, "attempts": 0, "retry_at": now, "why": ""}
    tx.execute(insert(outbox), {**name, **row})
    return True


def pending(tx: Connection, now: int) -> list[Letter]:
    """Return the messages to send now, oldest first."""
    rows = tx.execute(_PENDING, {"now": now})
    return [Letter(*row[:4], codec.load_object(row.body), *row[5:]) for row in rows]


def waits(tx: Connection, id: int) -> bool:  # noqa: A002 - the column's name
    """Whether a message is still to be delivered."""
    return tx.execute(_WAITS, {"id": id}).first() is not None


def sent_by_period(tx: Connection, kind: str) -> dict[str, dict[str, int | None]]:
    """Return when each channel took the message of each period; None for one that still waits."""
    found: dict[str, dict[str, int | None]] = {}
    for row in tx.execute(_OF_KIND, {"kind": kind}):
        found.setdefault(row.period, {})[row.channel] = row.sent_at
    return found


def words(tx: Connection, kind: str, period: str, channel: str) -> tuple[int | None, dict[str, Any]] | None:
    """Return when a message was sent, if it was, and its body; None when there is none of this name.

    The body is empty when what it said was forgotten (see :func:`empty`).
    """
    row = tx.execute(_WORDS, {"kind": kind, "period": period, "channel": channel}).first()
    return None if row is None else (row.sent_at, codec.load_object(row.body))


def stuck(tx: Connection, attempts: int) -> list[tuple[str, str, str, int, str]]:
    """Return (kind, period, channel, attempts, why) of messages that failed at least so many times."""
    return [tuple(row) for row in tx.execute(_STUCK, {"attempts": attempts})]


def sent(tx: Connection, id: int, now: int) -> None:  # noqa: A002 - the column's name
    """Note that a message was delivered. Raises Stale when it had been before, or is unknown."""
    _note(tx, id, sent_at=now, why="")


def failed(tx: Connection, id: int, retry_at: int, why: str) -> None:  # noqa: A002 - the column's name
    """Note a failed delivery; not to be tried before ``retry_at``. Raises Stale when sent, or unknown."""
    _note(tx, id, retry_at=retry_at, why=why)


def _note(tx: Connection, id: int, **values: Any) -> None:  # noqa: A002 - the column's name
    unsent = update(outbox).where(outbox.c.id == id, outbox.c.sent_at.is_(None))
    if not tx.execute(unsent.values(attempts=outbox.c.attempts + 1, **values)).rowcount:
        raise Stale(f"message {id}", "unsent", "sent, or no such message")


def empty(tx: Connection, before: int, limit: int) -> int:
    """Forget what up to ``limit`` messages sent before ``before`` said; return how many.

    That they were sent is never forgotten: it keeps them from being sent again.
    """
    ids = tx.execute(_OLD, {"before": before, "limit": limit}).scalars().all()
    if ids:
        tx.execute(update(outbox).where(outbox.c.id.in_(ids)).values(body="{}"))
    return len(ids)
