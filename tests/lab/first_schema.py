"""The schema of the first release, from which old databases are migrated: SQLite files of it are kept, no server's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext

from scheduler.store import migrations
from scheduler.store.schema import Serial, complete, key, one_of, optional, required, rows

if TYPE_CHECKING:
    from sqlalchemy import Connection

_TEXT, _WHOLE = sa.Text(), sa.BigInteger()


def make_first_schema(tx: Connection) -> None:
    """Create the tables and triggers of revision 0001 in an empty database."""
    op = Operations(MigrationContext.configure(tx, opts={"target_metadata": complete()}))
    _first(op)
    op.create_table("alembic_version", *key(sa.String(32), "version_num"))
    op.execute("INSERT INTO alembic_version (version_num) VALUES ('0001')")


def _first(op: Operations) -> None:
    """The first schema."""
    _make_jobs_and_runs(op)
    _make_records(op)
    _make_knowledge(op)
    _make_housekeeping(op)
    if not migrations._is_sqlite(op):
        op.execute(
            "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation'; END $$"
        )
    migrations._append_only(op, "events", "ledger")  # of the steps that were released: it never changes
    op.execute("INSERT INTO lease (id, holder, epoch, until) VALUES (1, '', 0, 0)")


def _make_jobs_and_runs(op: Operations) -> None:
    """Jobs, runs and lanes."""
    op.create_table(
        "jobs",
        *key(_TEXT, "name"),
        *required(_WHOLE, "position"),
        *required(_TEXT, "role"),
        *required(sa.Float(), "weight"),
        *required(_WHOLE, "target_step"),
        *optional(_WHOLE, "not_before", "deadline"),
        *required(_TEXT, "spec", "state", "state_detail"),
        *required(_WHOLE, "attempts", "failures", "done_step"),
        *optional(_TEXT, "checkpoint", "last_pool"),
        *required(_WHOLE, "created_at"),
        one_of("state", "queued", "active", "held", "done", "failed", "cancelled"),
        sa.CheckConstraint("attempts >= 0 AND failures >= 0 AND done_step >= 0", name="counts"),
    )
    op.create_index("ix_jobs_position", "jobs", ["position"])
    op.create_table(
        "runs",
        *key(_TEXT, "key"),
        *required(_TEXT, "pool"),
        *required(_WHOLE, "planned_start", "deadline", "held_until"),
        *required(_TEXT, "state", "state_detail"),
        *required(_WHOLE, "reserved_at"),
        *optional(_WHOLE, "ended_at"),
        *optional(_TEXT, "planned"),
        sa.CheckConstraint("(state = 'ended') = (ended_at IS NOT NULL)", name="ended_at"),
        one_of("state", "reserved", "submitting", "running", "stopping", "ended"),
    )
    op.create_index("ix_runs_ended_at", "runs", ["ended_at"])
    op.create_index("ix_runs_reserved_at", "runs", ["reserved_at"])
    op.create_table(
        "lanes",
        *key(_TEXT, "run"),
        *key(_WHOLE, "lane"),
        *required(_TEXT, "job"),
        *required(_WHOLE, "attempt"),
        *required(_TEXT, "devices"),
        *optional(_WHOLE, "restore_step"),
        *required(sa.Boolean(), "live"),
        *optional(_TEXT, "outcome"),
        *optional(_WHOLE, "end_step"),
        *optional(_TEXT, "error_class"),
        *required(_TEXT, "message"),
        *optional(_TEXT, "heartbeat"),
        sa.CheckConstraint("NOT live OR outcome IS NULL", name="live"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"]),
        sa.ForeignKeyConstraint(["run"], ["runs.key"]),
        sa.UniqueConstraint("job", "attempt"),
    )
    op.create_index("uq_lanes_job_live", "lanes", ["job"], unique=True, **rows("live"))


def _make_records(op: Operations) -> None:
    """Append-only records, and checkpoints."""
    op.create_table(
        "ledger",
        sa.Column("id", Serial, primary_key=True),
        *required(_TEXT, "kind", "pool"),
        *optional(_TEXT, "run"),
        *required(_WHOLE, "starts_at", "ends_at", "at"),
        *required(sa.Boolean(), "credit"),
        *required(_WHOLE, "price_microdollars_per_hour"),
        *required(_TEXT, "evidence"),
        sa.CheckConstraint("kind = 'adjust' OR (run IS NOT NULL AND NOT credit)", name="adjust"),
        one_of("kind", "hold", "spend", "release", "adjust"),
        sa.CheckConstraint("ends_at >= starts_at", name="interval"),
        sa.ForeignKeyConstraint(["run"], ["runs.key"]),
    )
    op.create_index("ix_ledger_ends_at", "ledger", ["ends_at"])
    op.create_index("ix_ledger_run", "ledger", ["run"])
    op.create_index("uq_ledger_run_hold", "ledger", ["run"], unique=True, **rows("kind = 'hold'"))
    op.create_index("uq_ledger_run_settled", "ledger", ["run"], unique=True, **rows("kind IN ('spend', 'release')"))
    op.create_table(
        "events",
        sa.Column("id", Serial, primary_key=True),
        *required(_WHOLE, "at"),
        *required(_TEXT, "kind", "subject", "by", "data"),
    )
    op.create_index("ix_events_subject_id", "events", ["subject", "id"])
    op.create_table(
        "checkpoints",
        *key(_TEXT, "key"),
        *required(_TEXT, "job"),
        *required(_WHOLE, "step", "attempt"),
        *required(_TEXT, "manifest"),
        *required(_WHOLE, "seen_at"),
        *required(_TEXT, "state", "why"),
        *required(sa.Boolean(), "pinned"),
        sa.CheckConstraint("NOT pinned OR state <> 'expired'", name="pinned"),
        one_of("state", "good", "quarantined", "expired"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"]),
    )
    op.create_index("ix_checkpoints_job_step", "checkpoints", ["job", "step"])


def _make_knowledge(op: Operations) -> None:
    """What was planned, measured and observed."""
    op.create_table(
        "plans",
        sa.Column("id", Serial, primary_key=True),
        *required(_WHOLE, "made_at", "saved_at"),
        *required(_TEXT, "digest", "body"),
    )
    op.create_index("ix_plans_made_at", "plans", ["made_at"])
    op.create_table(
        "rates",
        *key(_TEXT, "job", "pool"),
        *required(sa.Float(), "steps_per_second", "sigma"),
        *required(_WHOLE, "samples", "setup_seconds", "checkpoint_seconds", "at"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"]),
    )
    op.create_table(
        "limits",
        *key(_TEXT, "pool", "quota"),
        *key(_WHOLE, "starts_at", "ends_at"),
        *required(_WHOLE, "limit", "at"),
        *required(_TEXT, "source"),
        sa.CheckConstraint("ends_at >= starts_at", name="interval"),
    )
    op.create_table(
        "closures",
        *key(_TEXT, "pool"),
        *optional(_WHOLE, "until"),
        *required(_TEXT, "why"),
        *required(_WHOLE, "at"),
    )


def _make_housekeeping(op: Operations) -> None:
    """The lease, what is due, and what is to be sent."""
    op.create_table(
        "lease",
        *key(sa.Integer(), "id"),
        *required(_TEXT, "holder"),
        *required(_WHOLE, "epoch", "until"),
        sa.CheckConstraint("id = 1", name="one_row"),
    )
    op.create_table("due", *key(_TEXT, "name"), *required(_WHOLE, "at"))
    op.create_table(
        "outbox",
        sa.Column("id", Serial, primary_key=True),
        *required(_TEXT, "kind", "period", "channel", "body"),
        *required(_WHOLE, "created_at", "attempts", "retry_at"),
        *optional(_WHOLE, "sent_at"),
        *required(_TEXT, "why"),
        sa.UniqueConstraint("kind", "period", "channel"),
    )
    op.create_index("ix_outbox_pending", "outbox", ["retry_at"], **rows("sent_at IS NULL"))
