"""Conditions: problems that last, one row each, open or closed.

Writing an event opens or closes its condition in the same transaction. The row remains after the event is pruned.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from scheduler.store import codec
from scheduler.store.schema import conditions

RAISED, SILENT, OFFERED = "need.raised", "pool.silent", "session.offered"
SILENT_SECONDS = 1_800  # shorter silence, for example a maintenance window, is not reported
BLIND = "watch.blind"  # an event that opens no condition: the votes on a version cannot be read
RUN_POISONED, JOB_POISONED = "run.poisoned", "job.poisoned"
RELOAD_REFUSED = "daemon.reload_refused"
LAUNCH_POSTPONED = "launch.postponed"
RUN_UNCLEAR = "run.unclear"  # its platform cannot report its state
STALLED = "lane.stalled"
SUSPECTED = "checkpoint.suspected"  # a session could not start from it; it is not used until it is verified
PROPOSED = "agent.proposed"  # a change that an agent may make only after a person approves it
CONTRADICTED = "fact.contradicted"  # a session shows that a fact about its pool is wrong
LIVES = "session.lives"  # the session still runs although its run has ended
CLOSED_BY = {
    RAISED: ("need.settled",),
    SILENT: ("pool.answers",),
    OFFERED: ("session.taken",),
    RUN_POISONED: ("run.mended",),
    JOB_POISONED: ("job.mended",),
    LAUNCH_POSTPONED: ("job.activate",),
    RUN_UNCLEAR: ("run.clear",),
    RELOAD_REFUSED: ("daemon.started", "daemon.reloaded"),
    SUSPECTED: ("checkpoint.verified",),
    LIVES: ("session.left",),
    CONTRADICTED: ("fact.settled",),
    PROPOSED: ("agent.approved", "agent.rejected"),
}
_OPENS = {closing: kind for kind, closings in CLOSED_BY.items() for closing in closings}
_OPEN = (
    select(conditions)
    .where(conditions.c.kind == bindparam("kind"), conditions.c.state == "open")
    .order_by(conditions.c.subject, conditions.c.what)
)


@dataclass(frozen=True, slots=True)
class Condition:
    """An open condition. ``what`` distinguishes conditions of one kind and subject; ``since`` is in UTC seconds."""

    kind: str
    subject: str
    what: str
    since: int
    why: str


def standing(tx: Connection, kind: str) -> list[Condition]:
    """Return the open conditions of a kind, by subject."""
    return codec.records(Condition, tx.execute(_OPEN, {"kind": kind}))


def reasons(tx: Connection, kind: str) -> dict[str, str]:
    """Return the reason of each open condition by subject, for kinds with at most one condition per subject."""
    return {condition.subject: condition.why for condition in standing(tx, kind)}


def apply(tx: Connection, kind: str, subject: str, at: int, data: Mapping[str, Any]) -> None:
    """Open or close the condition that an event of ``kind`` belongs to; do nothing for other kinds of events."""
    what = str(data.get("what", ""))
    if kind in CLOSED_BY:
        put(tx, kind, subject, at=int(data.get("since", at)), why=str(data.get("why", "")), what=what)
    elif kind in _OPENS:
        close(tx, _OPENS[kind], subject, what)


def put(tx: Connection, kind: str, subject: str, *, at: int, why: str, what: str = "") -> None:
    """Open a condition, or update an open one."""
    values = {"state": "open", "since": at, "why": why}
    if not tx.execute(_row(kind, subject, what).values(values)).rowcount:
        tx.execute(insert(conditions).values(kind=kind, subject=subject, what=what, **values))


def close(tx: Connection, kind: str, subject: str, what: str = "") -> None:
    """Close a condition if it is open."""
    tx.execute(_row(kind, subject, what).values(state="closed"))


def _row(kind: str, subject: str, what: str) -> Any:
    key = (conditions.c.kind == kind, conditions.c.subject == subject, conditions.c.what == what)
    return update(conditions).where(*key)
