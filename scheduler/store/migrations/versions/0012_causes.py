"""Why pools are closed, as data beside the sentence, and what is wrong now, as rows beside the events."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

from scheduler.store.columns import key, one_of, optional, required

revision = "0012"
down_revision = "0011"

CONDITIONS = {  # as they were when this was written: by the event that opens one, those that close it
    "need.raised": ("need.settled",),
    "pool.silent": ("pool.answers",),
    "session.offered": ("session.taken",),
    "run.poisoned": ("run.mended",),
    "job.poisoned": ("job.mended",),
    "daemon.reload_refused": ("daemon.started", "daemon.reloaded"),
}
_UNPLANNABLE = "planning fails with it"
_WHOSE = sa.text(
    "SELECT kind, by, data FROM events WHERE subject = :pool AND kind IN ('pool.closed', 'pool.quota_denied')"
    " ORDER BY id DESC LIMIT 2"
)


def upgrade() -> None:
    """Classify the closures that stand, and open the conditions that the events left open."""
    tx = op.get_bind()
    closures = [tuple(row) for row in tx.execute(sa.text("SELECT pool, until, why, at FROM closures"))]
    op.drop_table("closures")
    table = op.create_table(
        "closures",
        *key(sa.Text(), "pool"),
        *optional(sa.BigInteger(), "until"),
        *required(sa.Text(), "why"),
        *required(sa.BigInteger(), "at"),
        *required(sa.Text(), "cause"),
    )
    names = ("pool", "until", "why", "at", "cause")
    rows = [dict(zip(names, (*row, _cause(tx, row[0], row[2])), strict=True)) for row in closures]
    if rows:
        op.bulk_insert(table, rows)
    table = op.create_table(
        "conditions",
        *key(sa.Text(), "kind", "subject", "what"),
        *required(sa.Text(), "state"),
        *required(sa.BigInteger(), "since"),
        *required(sa.Text(), "why"),
        one_of("state", "open", "closed"),
    )
    if conditions := _conditions(tx):
        op.bulk_insert(table, conditions)


def _cause(tx: sa.Connection, pool: str, why: str) -> str:
    """Return the cause of a closure; what only a person can have written is a person's."""
    newest = list(tx.execute(_WHOSE, {"pool": pool}))
    by = next((row.by for row in newest if row.kind == "pool.closed"), "")
    if by == "the scheduler":
        return "planning"
    if by != "daemon":
        return "person"
    if why.startswith("quota unreadable"):
        return "quota_refused" if why.startswith("quota unreadable, waits for a person") else "quota_unreadable"
    if why.startswith("waits for a person"):
        return "credentials"
    if why.startswith("wrong accelerator"):
        return "wrong_device"
    denied = any(row.kind == "pool.quota_denied" and json.loads(row.data).get("why") == why for row in newest)
    return "quota_denied" if denied else "refused"


def _conditions(tx: sa.Connection) -> list[dict[str, object]]:
    opens = {closing: kind for kind, closings in CONDITIONS.items() for closing in closings}
    about = sa.text("SELECT kind, subject, at, data FROM events WHERE kind IN :kinds ORDER BY id").bindparams(
        sa.bindparam("kinds", [*CONDITIONS, *opens], expanding=True)
    )
    rows: dict[tuple[str, str, str], dict[str, object]] = {}
    for row in tx.execute(about):
        data = json.loads(row.data)
        kind, what = opens.get(row.kind, row.kind), str(data.get("what", ""))
        key = (kind, row.subject, what)
        if row.kind in CONDITIONS:
            since, why = int(data.get("since", row.at)), str(data.get("why", ""))
            values = {"state": "open", "since": since, "why": why}
            rows[key] = {"kind": kind, "subject": row.subject, "what": what, **values}
        elif key in rows:
            rows[key]["state"] = "closed"
    for row in tx.execute(sa.text("SELECT name, state_detail FROM jobs WHERE state = 'held'")):
        held = json.loads(row.state_detail)
        if held.get("by") == "the scheduler" and str(held.get("why")).startswith(_UNPLANNABLE):
            key = ("job.poisoned", row.name, "")
            values = {"state": "open", "since": int(held["since"]), "why": str(held["why"])}
            rows[key] = {"kind": "job.poisoned", "subject": row.name, "what": "", **values}
    return list(rows.values())
