"""Rests: pools that are left alone for a while because of what they did, longer each time that they do it again."""

from __future__ import annotations

from sqlalchemy import Connection

from scheduler.core.backoff import rest_seconds
from scheduler.core.closure import Cause
from scheduler.core.window import DAY, HOUR
from scheduler.store import events, limits

WRONG_DEVICE = "pool.wrong_device"
QUOTA_DENIED = "pool.quota_denied"
NEVER_BEGAN = "pool.never_began"  # a session ended by itself before the command of its job had begun
# By kind of event: the first rest, the longest, and the cause. A wrong accelerator costs minutes until it is noticed.
_RESTS = {
    WRONG_DEVICE: (6 * HOUR, DAY, Cause.WRONG_DEVICE),
    QUOTA_DENIED: (600, 6 * HOUR, Cause.QUOTA_DENIED),
    NEVER_BEGAN: (60, 6 * HOUR, Cause.NEVER_BEGAN),
}


def rest(tx: Connection, pool: str, kind: str, why: str, now: int, at_most_until: int | None = None) -> int:
    """Close a pool for a while, by an event of ``kind`` that says why; return until when.

    It is tried again then, or at ``at_most_until`` when that is sooner. A person may open it before.
    """
    first, longest, cause = _RESTS[kind]
    told = events.tail(tx, limit=1, kinds=[kind], subject=pool)
    before = (told[-1].at, int(told[-1].data["rest_seconds"])) if told else None
    seconds = rest_seconds(before, now, first, longest)
    # A launch that was under way when the pool was closed, and fails as well, does not delay the next try.
    until = before[0] + before[1] if before is not None and now < sum(before) else now + seconds
    if at_most_until is not None:
        until = min(until, at_most_until)
    limits.close_pool(tx, pool, until, why, now, cause=cause)
    events.append(tx, kind, pool, now, why=why, rest_seconds=seconds, until=until)
    return until
