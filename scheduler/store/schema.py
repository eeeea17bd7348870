"""Tables and the rules the database enforces itself.

Times are integer UTC seconds, structured values canonical JSON. Ledger and events are append-only: triggers made by
the migrations refuse UPDATE, DELETE and REPLACE. Old events alone may go, up to the id that ``pruned`` names.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, Integer, MetaData, Table, UniqueConstraint, text

from scheduler.store.columns import Flag, Number, Serial, Whole, Words

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009")
"""Every schema revision this version knows, oldest first; here, so that opening a database needs no alembic."""


metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def _one_of(column: str, *values: str) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


def _required(name: str, kind: Any) -> Column[Any]:
    return Column(name, kind, nullable=False)


jobs = Table(
    "jobs",
    metadata,
    Column("name", Words, primary_key=True),
    _required("position", Whole),
    _required("role", Words),
    _required("weight", Number),
    _required("target_step", Whole),
    Column("not_before", Whole),
    Column("deadline", Whole),
    _required("spec", Words),  # the other fields of the JobSpec
    _required("state", Words),
    _required("state_detail", Words),
    _required("attempts", Whole),
    _required("failures", Whole),
    _required("done_step", Whole),
    Column("checkpoint", Words),
    Column("last_pool", Words),
    _required("created_at", Whole),
    Column("removed_at", Whole),  # out of the queue since then; its name may be taken again
    Column("fenced_attempt", Whole),  # what attempts up to this one saved is of a removed job of this name
    _one_of("state", "queued", "active", "held", "done", "failed", "cancelled"),
    CheckConstraint("attempts >= 0 AND failures >= 0 AND done_step >= 0", name="counts"),
    Index("ix_jobs_position", "position"),
)

runs = Table(
    "runs",
    metadata,
    Column("key", Words, primary_key=True),
    _required("pool", Words),
    _required("planned_start", Whole),
    _required("deadline", Whole),
    _required("held_until", Whole),
    _required("state", Words),
    _required("state_detail", Words),
    _required("reserved_at", Whole),
    Column("ended_at", Whole),
    Column("planned", Words),
    _one_of("state", "reserved", "submitting", "running", "stopping", "ended"),
    CheckConstraint("(state = 'ended') = (ended_at IS NOT NULL)", name="ended_at"),
    Index("ix_runs_ended_at", "ended_at"),
    Index("ix_runs_reserved_at", "reserved_at"),
)

lanes = Table(
    "lanes",
    metadata,
    Column("run", Words, ForeignKey("runs.key"), primary_key=True),
    Column("lane", Whole, primary_key=True, autoincrement=False),
    Column("job", Words, ForeignKey("jobs.name"), nullable=False),
    _required("attempt", Whole),
    _required("devices", Words),
    Column("restore_step", Whole),
    _required("live", Flag),
    Column("outcome", Words),
    Column("end_step", Whole),
    Column("error_class", Words),
    _required("message", Words),
    Column("heartbeat", Words),
    Column("code", Words),
    Column("trees", Words),
    UniqueConstraint("job", "attempt"),
    CheckConstraint("NOT live OR outcome IS NULL", name="live"),
)

ledger = Table(
    "ledger",
    metadata,
    Column("id", Serial, primary_key=True),
    _required("kind", Words),
    _required("pool", Words),
    Column("run", Words, ForeignKey("runs.key")),
    _required("starts_at", Whole),
    _required("ends_at", Whole),
    _required("at", Whole),
    _required("credit", Flag),
    _required("price_microdollars_per_hour", Whole),
    _required("evidence", Words),
    _one_of("kind", "hold", "spend", "release", "adjust"),
    CheckConstraint("ends_at >= starts_at", name="interval"),
    CheckConstraint("kind = 'adjust' OR (run IS NOT NULL AND NOT credit)", name="adjust"),
    Index("ix_ledger_run", "run"),
    Index("ix_ledger_ends_at", "ends_at"),
)

events = Table(
    "events",
    metadata,
    Column("id", Serial, primary_key=True),
    _required("at", Whole),
    _required("kind", Words),
    _required("subject", Words),
    _required("by", Words),
    _required("data", Words),
    Index("ix_events_subject_id", "subject", "id"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("key", Words, primary_key=True),
    Column("job", Words, ForeignKey("jobs.name"), nullable=False),
    _required("step", Whole),
    _required("attempt", Whole),
    _required("manifest", Words),
    _required("seen_at", Whole),
    _required("state", Words),
    _required("why", Words),
    _required("pinned", Flag),
    _one_of("state", "good", "quarantined", "expired"),
    CheckConstraint("NOT pinned OR state <> 'expired'", name="pinned"),
    Index("ix_checkpoints_job_step", "job", "step"),
)

generations = Table(
    "generations",
    metadata,
    Column("job", Words, ForeignKey("jobs.name"), primary_key=True),
    Column("number", Whole, primary_key=True, autoincrement=False),
    _required("first_attempt", Whole),
    _required("began_at", Whole),
    Column("parent", Words),
    Column("parent_step", Whole),
    Column("parent_key", Words),
    _required("refused", Words),
)

series = Table(
    "series",
    metadata,
    Column("job", Words, ForeignKey("jobs.name"), primary_key=True),
    Column("attempt", Whole, primary_key=True, autoincrement=False),
    Column("step", Whole, primary_key=True, autoincrement=False),
    _required("at", Whole),
    Column("loss", Number),
    Column("held_out_loss", Number),
)

trees = Table(
    "trees",
    metadata,
    Column("digest", Words, primary_key=True),
    Column("delete_at", Whole),
    _required("going", Flag),
    _required("kind", Words),
    Column("origin", Words),
)
discards = Table(
    "discards",
    metadata,
    Column("key", Words, primary_key=True),
    Column("job", Words, ForeignKey("jobs.name"), nullable=False),
    _required("why", Words),
    _required("marked_at", Whole),
    _required("delete_at", Whole),
    CheckConstraint("delete_at >= marked_at", name="grace"),
    Index("ix_discards_job", "job"),
)

watched = Table(
    "watched",
    metadata,
    Column("run", Words, ForeignKey("runs.key"), primary_key=True),
    _required("until", Whole),
    Column("booked_start", Whole),
    Column("booked_end", Whole),
    CheckConstraint("(booked_start IS NULL) = (booked_end IS NULL)", name="booked"),
)

pruned = Table(
    "pruned",
    metadata,
    Column("name", Words, primary_key=True),
    _required("up_to", Whole),
    _one_of("name", "events"),
)

plans = Table(
    "plans",
    metadata,
    Column("id", Serial, primary_key=True),
    _required("made_at", Whole),
    _required("saved_at", Whole),
    _required("digest", Words),
    _required("body", Words),
    Index("ix_plans_made_at", "made_at"),
)

rates = Table(
    "rates",
    metadata,
    Column("job", Words, ForeignKey("jobs.name"), primary_key=True),
    Column("pool", Words, primary_key=True),
    _required("steps_per_second", Number),
    _required("sigma", Number),
    _required("samples", Whole),
    _required("setup_seconds", Whole),
    _required("checkpoint_seconds", Whole),
    _required("at", Whole),
    _required("delay_seconds", Whole),
    _required("setup_sigma", Number),
    _required("checkpoint_sigma", Number),
)

limits = Table(
    "limits",
    metadata,
    Column("pool", Words, primary_key=True),
    Column("quota", Words, primary_key=True),
    Column("starts_at", Whole, primary_key=True, autoincrement=False),
    Column("ends_at", Whole, primary_key=True, autoincrement=False),
    _required("limit", Whole),
    _required("at", Whole),
    _required("source", Words),
    CheckConstraint("ends_at >= starts_at", name="interval"),
)

closures = Table(
    "closures",
    metadata,
    Column("pool", Words, primary_key=True),
    Column("until", Whole),
    _required("why", Words),
    _required("at", Whole),
)

lease = Table(
    "lease",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    _required("holder", Words),
    _required("epoch", Whole),
    _required("until", Whole),
    CheckConstraint("id = 1", name="one_row"),
)

due = Table(
    "due",
    metadata,
    Column("name", Words, primary_key=True),
    _required("at", Whole),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", Serial, primary_key=True),
    _required("kind", Words),
    _required("period", Words),
    _required("channel", Words),
    _required("body", Words),
    _required("created_at", Whole),
    _required("attempts", Whole),
    _required("retry_at", Whole),
    Column("sent_at", Whole),
    _required("why", Words),
    UniqueConstraint("kind", "period", "channel"),
)

_PARTIAL_INDEXES = (
    ("uq_lanes_job_live", lanes.c.job, "live", True),
    ("uq_ledger_run_hold", ledger.c.run, "kind = 'hold'", True),
    ("uq_ledger_run_settled", ledger.c.run, "kind IN ('spend', 'release')", True),
    ("ix_outbox_pending", outbox.c.retry_at, "sent_at IS NULL", False),
)


@cache
def complete() -> MetaData:
    """Return the metadata with its partial indexes, as migrations are compared to it.

    They are added on demand: their options make SQLAlchemy load both dialects, a tenth of the start of a command.
    """
    for name, column, condition, unique in _PARTIAL_INDEXES:
        Index(name, column, unique=unique, sqlite_where=text(condition), postgresql_where=text(condition))
    return metadata
