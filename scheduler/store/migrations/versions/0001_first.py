"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from scheduler.store.columns import Serial, key, one_of, optional, required, rows

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make all tables, the append-only triggers and the one row of the lease."""
    make_jobs_and_runs()
    make_records()
    make_knowledge()
    make_housekeeping()
    make_append_only()
    op.execute("INSERT INTO lease (id, holder, epoch, until) VALUES (1, '', 0, 0)")


def make_jobs_and_runs() -> None:
    """Jobs, runs and lanes."""
    op.create_table(
        "jobs",
        *key(sa.Text(), "name"),
        *required(sa.BigInteger(), "position"),
        *required(sa.Text(), "role"),
        *required(sa.Float(), "weight"),
        *required(sa.BigInteger(), "target_step"),
        *optional(sa.BigInteger(), "not_before", "deadline"),
        *required(sa.Text(), "spec", "state", "state_detail"),
        *required(sa.BigInteger(), "attempts", "failures", "done_step"),
        *optional(sa.Text(), "checkpoint", "last_pool"),
        *required(sa.BigInteger(), "created_at"),
        one_of("state", "queued", "active", "held", "done", "failed", "cancelled"),
        sa.CheckConstraint("attempts >= 0 AND failures >= 0 AND done_step >= 0", name="counts"),
    )
    op.create_index("ix_jobs_position", "jobs", ["position"])
    op.create_table(
        "runs",
        *key(sa.Text(), "key"),
        *required(sa.Text(), "pool"),
        *required(sa.BigInteger(), "planned_start", "deadline", "held_until"),
        *required(sa.Text(), "state", "state_detail"),
        *required(sa.BigInteger(), "reserved_at"),
        *optional(sa.BigInteger(), "ended_at"),
        *optional(sa.Text(), "planned"),
        sa.CheckConstraint("(state = 'ended') = (ended_at IS NOT NULL)", name="ended_at"),
        one_of("state", "reserved", "submitting", "running", "stopping", "ended"),
    )
    op.create_index("ix_runs_ended_at", "runs", ["ended_at"])
    op.create_index("ix_runs_reserved_at", "runs", ["reserved_at"])
    op.create_table(
        "lanes",
        *key(sa.Text(), "run"),
        *key(sa.BigInteger(), "lane"),
        *required(sa.Text(), "job"),
        *required(sa.BigInteger(), "attempt"),
        *required(sa.Text(), "devices"),
        *optional(sa.BigInteger(), "restore_step"),
        *required(sa.Boolean(), "live"),
        *optional(sa.Text(), "outcome"),
        *optional(sa.BigInteger(), "end_step"),
        *optional(sa.Text(), "error_class"),
        *required(sa.Text(), "message"),
        *optional(sa.Text(), "heartbeat"),
        sa.CheckConstraint("NOT live OR outcome IS NULL", name="live"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"]),
        sa.ForeignKeyConstraint(["run"], ["runs.key"]),
        sa.UniqueConstraint("job", "attempt"),
    )
    op.create_index("uq_lanes_job_live", "lanes", ["job"], unique=True, **rows("live"))


def make_records() -> None:
    """Append-only records, and checkpoints."""
    op.create_table(
        "ledger",
        sa.Column("id", Serial, primary_key=True),
        *required(sa.Text(), "kind", "pool"),
        *optional(sa.Text(), "run"),
        *required(sa.BigInteger(), "starts_at", "ends_at", "at"),
        *required(sa.Boolean(), "credit"),
        *required(sa.BigInteger(), "price_microdollars_per_hour"),
        *required(sa.Text(), "evidence"),
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
        *required(sa.BigInteger(), "at"),
        *required(sa.Text(), "kind", "subject", "by", "data"),
    )
    op.create_index("ix_events_subject_id", "events", ["subject", "id"])
    op.create_table(
        "checkpoints",
        *key(sa.Text(), "key"),
        *required(sa.Text(), "job"),
        *required(sa.BigInteger(), "step", "attempt"),
        *required(sa.Text(), "manifest"),
        *required(sa.BigInteger(), "seen_at"),
        *required(sa.Text(), "state", "why"),
        *required(sa.Boolean(), "pinned"),
        sa.CheckConstraint("NOT pinned OR state <> 'expired'", name="pinned"),
        one_of("state", "good", "quarantined", "expired"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"]),
    )
    op.create_index("ix_checkpoints_job_step", "checkpoints", ["job", "step"])


def make_knowledge() -> None:
    """What was planned, measured and observed."""
    op.create_table(
        "plans",
        sa.Column("id", Serial, primary_key=True),
        *required(sa.BigInteger(), "made_at", "saved_at"),
        *required(sa.Text(), "digest", "body"),
    )
    op.create_index("ix_plans_made_at", "plans", ["made_at"])
    op.create_table(
        "rates",
        *key(sa.Text(), "job", "pool"),
        *required(sa.Float(), "steps_per_second", "sigma"),
        *required(sa.BigInteger(), "samples", "setup_seconds", "checkpoint_seconds", "at"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"]),
    )
    op.create_table(
        "limits",
        *key(sa.Text(), "pool", "quota"),
        *key(sa.BigInteger(), "starts_at", "ends_at"),
        *required(sa.BigInteger(), "limit", "at"),
        *required(sa.Text(), "source"),
        sa.CheckConstraint("ends_at >= starts_at", name="interval"),
    )
    op.create_table(
        "closures",
        *key(sa.Text(), "pool"),
        *optional(sa.BigInteger(), "until"),
        *required(sa.Text(), "why"),
        *required(sa.BigInteger(), "at"),
    )


def make_housekeeping() -> None:
    """The lease, what is due, and what is to be sent."""
    op.create_table(
        "lease",
        *key(sa.Integer(), "id"),
        *required(sa.Text(), "holder"),
        *required(sa.BigInteger(), "epoch", "until"),
        sa.CheckConstraint("id = 1", name="one_row"),
    )
    op.create_table("due", *key(sa.Text(), "name"), *required(sa.BigInteger(), "at"))
    op.create_table(
        "outbox",
        sa.Column("id", Serial, primary_key=True),
        *required(sa.Text(), "kind", "period", "channel", "body"),
        *required(sa.BigInteger(), "created_at", "attempts", "retry_at"),
        *optional(sa.BigInteger(), "sent_at"),
        *required(sa.Text(), "why"),
        sa.UniqueConstraint("kind", "period", "channel"),
    )
    op.create_index("ix_outbox_pending", "outbox", ["retry_at"], **rows("sent_at IS NULL"))


def make_append_only() -> None:
    """Let the database refuse to change or delete a row of the events and the ledger."""
    if op.get_context().dialect.name == "sqlite":
        for table in ("events", "ledger"):
            for change in ("UPDATE", "DELETE"):
                op.execute(
                    f"CREATE TRIGGER {table}_no_{change.lower()} BEFORE {change} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
                )
        return
    op.execute(
        "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation'; END $$"
    )
    for table in ("events", "ledger"):
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
