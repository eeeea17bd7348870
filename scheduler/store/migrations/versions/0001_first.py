"""The first schema."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# SQLite numbers rows by itself only in a column whose type is exactly INTEGER.
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def where(condition: str) -> dict[str, Any]:
    """Return the options that make an index partial."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


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
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("weight", sa.Float(), nullable=False),
        sa.Column("target_step", sa.BigInteger(), nullable=False),
        sa.Column("not_before", sa.BigInteger(), nullable=True),
        sa.Column("deadline", sa.BigInteger(), nullable=True),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("state_detail", sa.Text(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("done_step", sa.BigInteger(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=True),
        sa.Column("last_pool", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "state IN ('queued', 'active', 'held', 'done', 'failed', 'cancelled')", name=op.f("ck_jobs_state")
        ),
        sa.CheckConstraint("attempts >= 0 AND failures >= 0 AND done_step >= 0", name=op.f("ck_jobs_counts")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_jobs")),
    )
    op.create_index("ix_jobs_position", "jobs", ["position"])
    op.create_table(
        "runs",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("planned_start", sa.BigInteger(), nullable=False),
        sa.Column("deadline", sa.BigInteger(), nullable=False),
        sa.Column("held_until", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("state_detail", sa.Text(), nullable=False),
        sa.Column("reserved_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("planned", sa.Text(), nullable=True),
        sa.CheckConstraint("(state = 'ended') = (ended_at IS NOT NULL)", name=op.f("ck_runs_ended_at")),
        sa.CheckConstraint(
            "state IN ('reserved', 'submitting', 'running', 'stopping', 'ended')", name=op.f("ck_runs_state")
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_runs")),
    )
    op.create_index("ix_runs_ended_at", "runs", ["ended_at"])
    op.create_index("ix_runs_reserved_at", "runs", ["reserved_at"])
    op.create_table(
        "lanes",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("lane", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("devices", sa.Text(), nullable=False),
        sa.Column("restore_step", sa.BigInteger(), nullable=True),
        sa.Column("live", sa.Boolean(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("end_step", sa.BigInteger(), nullable=True),
        sa.Column("error_class", sa.Text(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("heartbeat", sa.Text(), nullable=True),
        sa.CheckConstraint("NOT live OR outcome IS NULL", name=op.f("ck_lanes_live")),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_lanes_job")),
        sa.ForeignKeyConstraint(["run"], ["runs.key"], name=op.f("fk_lanes_run")),
        sa.PrimaryKeyConstraint("run", "lane", name=op.f("pk_lanes")),
        sa.UniqueConstraint("job", "attempt", name=op.f("uq_lanes_job_attempt")),
    )
    op.create_index("uq_lanes_job_live", "lanes", ["job"], unique=True, **where("live"))


def make_records() -> None:
    """Append-only records, and checkpoints."""
    op.create_table(
        "ledger",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("run", sa.Text(), nullable=True),
        sa.Column("starts_at", sa.BigInteger(), nullable=False),
        sa.Column("ends_at", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("credit", sa.Boolean(), nullable=False),
        sa.Column("price_microdollars_per_hour", sa.BigInteger(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.CheckConstraint("kind = 'adjust' OR (run IS NOT NULL AND NOT credit)", name=op.f("ck_ledger_adjust")),
        sa.CheckConstraint("kind IN ('hold', 'spend', 'release', 'adjust')", name=op.f("ck_ledger_kind")),
        sa.CheckConstraint("ends_at >= starts_at", name=op.f("ck_ledger_interval")),
        sa.ForeignKeyConstraint(["run"], ["runs.key"], name=op.f("fk_ledger_run")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger")),
    )
    op.create_index("ix_ledger_ends_at", "ledger", ["ends_at"])
    op.create_index("ix_ledger_run", "ledger", ["run"])
    op.create_index("uq_ledger_run_hold", "ledger", ["run"], unique=True, **where("kind = 'hold'"))
    op.create_index("uq_ledger_run_settled", "ledger", ["run"], unique=True, **where("kind IN ('spend', 'release')"))
    op.create_table(
        "events",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index("ix_events_subject_id", "events", ["subject", "id"])
    op.create_table(
        "checkpoints",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.CheckConstraint("NOT pinned OR state <> 'expired'", name=op.f("ck_checkpoints_pinned")),
        sa.CheckConstraint("state IN ('good', 'quarantined', 'expired')", name=op.f("ck_checkpoints_state")),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_checkpoints_job")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_checkpoints")),
    )
    op.create_index("ix_checkpoints_job_step", "checkpoints", ["job", "step"])


def make_knowledge() -> None:
    """What was planned, measured and observed."""
    op.create_table(
        "plans",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("made_at", sa.BigInteger(), nullable=False),
        sa.Column("saved_at", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_plans")),
    )
    op.create_index("ix_plans_made_at", "plans", ["made_at"])
    op.create_table(
        "rates",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("steps_per_second", sa.Float(), nullable=False),
        sa.Column("sigma", sa.Float(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("setup_seconds", sa.BigInteger(), nullable=False),
        sa.Column("checkpoint_seconds", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_rates_job")),
        sa.PrimaryKeyConstraint("job", "pool", name=op.f("pk_rates")),
    )
    op.create_table(
        "limits",
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("quota", sa.Text(), nullable=False),
        sa.Column("starts_at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("ends_at", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("limit", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.CheckConstraint("ends_at >= starts_at", name=op.f("ck_limits_interval")),
        sa.PrimaryKeyConstraint("pool", "quota", "starts_at", "ends_at", name=op.f("pk_limits")),
    )
    op.create_table(
        "closures",
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=True),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("pool", name=op.f("pk_closures")),
    )


def make_housekeeping() -> None:
    """The lease, what is due, and what is to be sent."""
    op.create_table(
        "lease",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_lease_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lease")),
    )
    op.create_table(
        "due",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_due")),
    )
    op.create_table(
        "outbox",
        sa.Column("id", SERIAL, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("period", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("retry_at", sa.BigInteger(), nullable=False),
        sa.Column("sent_at", sa.BigInteger(), nullable=True),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
        sa.UniqueConstraint("kind", "period", "channel", name=op.f("uq_outbox_kind_period_channel")),
    )
    op.create_index("ix_outbox_pending", "outbox", ["retry_at"], **where("sent_at IS NULL"))


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
