"""Outbox: messages that are stored together with the facts which they report, and are sent later."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from jobs.payload.bounds import INSTANT_MAX
from scheduler.store import codec
from scheduler.store.errors import Stale
from scheduler.store.schema import outbox


@dataclass(frozen=True, slots=True)
class OutboxMessage:
    """A message that is not sent before ``retry_at``, after ``attempts`` failures; ``why`` is the last error."""

    id: int
    kind: str
    period: str
    channel: str
    body: dict[str, Any]
    created_at: int
    attempts: int
    retry_at: int
    why: str


_SAME_MESSAGE = select(outbox.c.id).where(
    outbox.c.kind == bindparam("kind"), outbox.c.period == bindparam("period"), outbox.c.channel == bindparam("channel")
)
_OF_KIND = select(outbox.c.period, outbox.c.channel, outbox.c.sent_at).where(outbox.c.kind == bindparam("kind"))
_STATUS = _SAME_MESSAGE.with_only_columns(outbox.c.sent_at, outbox.c.body)
_OLD = (
    select(outbox.c.id)
    .where(outbox.c.sent_at < bindparam("before"), outbox.c.body != "{}")
    .order_by(outbox.c.id)
    .limit(bindparam("limit"))
)
_PENDING = (
    select(*codec.columns(outbox, OutboxMessage))
    .where(outbox.c.sent_at.is_(None), outbox.c.retry_at <= bindparam("now"))
    .order_by(outbox.c.id)
)
_WAITS = select(outbox.c.id).where(outbox.c.id == bindparam("id"), outbox.c.sent_at.is_(None))
_STUCK = (
    select(outbox.c.channel, outbox.c.attempts, outbox.c.created_at, outbox.c.retry_at, outbox.c.why)
    .where(
        outbox.c.sent_at.is_(None),
        (outbox.c.attempts >= bindparam("attempts")) | (outbox.c.retry_at == bindparam("never")),
        (outbox.c.retry_at < bindparam("never")) | (outbox.c.created_at >= bindparam("since")),
    )
    .order_by(outbox.c.channel, outbox.c.id)
)
_ACCEPTED_SINCE = (
    select(outbox.c.id).where(outbox.c.channel == bindparam("channel"), outbox.c.sent_at > bindparam("at")).limit(1)
)
NEVER = INSTANT_MAX
"""The ``retry_at`` of a message that was given up."""


def add(tx: Connection, kind: str, period: str, channel: str, body: Mapping[str, Any], now: int) -> bool:
    """Add a message; return False if one of this kind, period and channel exists, sent or not."""
    name = {"kind": kind, "period": period, "channel": channel}
    if tx.execute(_SAME_MESSAGE, name).first() is not None:
        return False
    row = {"body": codec.dump(dict(body)), "created_at": now, "attempts": 0, "retry_at": now, "why": ""}
    tx.execute(insert(outbox), {**name, **row})
    return True


def pending(tx: Connection, now: int) -> list[OutboxMessage]:
    """Return the messages to send now, oldest first."""
    return codec.records(OutboxMessage, tx.execute(_PENDING, {"now": now}))


def waits(tx: Connection, id: int) -> bool:  # noqa: A002 - the column's name
    """Return whether a message still has to be delivered."""
    return tx.execute(_WAITS, {"id": id}).first() is not None


def sent_by_period(tx: Connection, kind: str) -> dict[str, dict[str, int | None]]:
    """Return by period and channel when a message was sent, in UTC seconds; None if it is not sent yet."""
    result: dict[str, dict[str, int | None]] = {}
    for row in tx.execute(_OF_KIND, {"kind": kind}):
        result.setdefault(row.period, {})[row.channel] = row.sent_at
    return result


def find(tx: Connection, kind: str, period: str, channel: str) -> tuple[int | None, dict[str, Any]] | None:
    """Return when a message was sent (None: not yet) and its body; None if there is no such message.

    The body is empty after :func:`empty` deleted it.
    """
    row = tx.execute(_STATUS, {"kind": kind, "period": period, "channel": channel}).first()
    return None if row is None else (row.sent_at, codec.load_object(row.body))


@dataclass(frozen=True, slots=True)
class StuckMessage:
    """The messages that a channel rejects: their number, the attempts and age of the first, and the last error."""

    channel: str
    messages: int
    attempts: int
    since: int
    why: str


def stuck(tx: Connection, attempts: int, since: int = 0) -> list[StuckMessage]:
    """Return the channels with messages that failed at least ``attempts`` times, or that are given up.

    A given-up message counts only if it was created at ``since`` or later, and its channel accepted none after it.
    """
    result: dict[str, StuckMessage] = {}
    for row in tx.execute(_STUCK, {"attempts": attempts, "never": NEVER, "since": since}):
        values = {"channel": row.channel, "at": row.created_at}
        if row.retry_at == NEVER and tx.execute(_ACCEPTED_SINCE, values).first() is not None:
            continue
        first = result.get(row.channel) or StuckMessage(row.channel, 0, row.attempts, row.created_at, "")
        result[row.channel] = replace(first, messages=first.messages + 1, why=row.why)
    return list(result.values())


def sent(tx: Connection, id: int, now: int) -> None:  # noqa: A002 - the column's name
    """Record that a message was delivered. Raises Stale if it was delivered before, or is unknown."""
    _record_attempt(tx, id, sent_at=now, why="")


def failed(tx: Connection, id: int, retry_at: int, why: str) -> None:  # noqa: A002 - the column's name
    """Record a failed delivery; the next is at ``retry_at`` or later. Raises Stale if it was sent, or is unknown."""
    _record_attempt(tx, id, retry_at=retry_at, why=why)


def _record_attempt(tx: Connection, id: int, **values: Any) -> None:  # noqa: A002 - the column's name
    unsent = update(outbox).where(outbox.c.id == id, outbox.c.sent_at.is_(None))
    if not tx.execute(unsent.values(attempts=outbox.c.attempts + 1, **values)).rowcount:
        raise Stale(f"message {id}", "unsent", "sent, or no such message")


def empty(tx: Connection, before: int, limit: int) -> int:
    """Delete the bodies of up to ``limit`` messages sent before ``before``; return how many.

    The rows are kept, so that no message is sent again.
    """
    ids = tx.execute(_OLD, {"before": before, "limit": limit}).scalars().all()
    if ids:
        tx.execute(update(outbox).where(outbox.c.id.in_(ids)).values(body="{}"))
    return len(ids)
