"""Tables and the rules the database enforces itself.

Times are integer UTC seconds, structured values canonical JSON. Ledger and events are append-only: triggers made by
the migrations refuse UPDATE, DELETE and REPLACE. Old events alone may go, up to the id that ``pruned`` names.
"""

from __future__ import annotations

from functools import cache

from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, Integer, MetaData, Table, UniqueConstraint, text

from scheduler.store.columns import Flag, Number, Serial, Whole, Words
from scheduler.store.declare import metadata as metadata  # noqa: PLC0414 - whoever wants all tables asks here
from scheduler.store.declare import one_of, required
from scheduler.store.model_tables import deployments, evaluations

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011", "0012", "0013")
"""Every schema revision this version knows, oldest first; here, so that opening a database needs no alembic."""


jobs = Table(
    "jobs",
    metadata,
    Column("name", Words, primary_key=True),
    required("position", Whole),
    required("role", Words),
    required("weight", Number),
    required("target_step", Whole),
    Column("not_before", Whole),
    Column("deadline", Whole),
    required("spec", Words),  # the other fields of the JobSpec
    required("state", Words),
    required("state_detail", Words),
    required("attempts", Whole),
    required("failures", Whole),
    required("done_step", Whole),
    Column("checkpoint", Words),
    Column("last_pool", Words),
    required("created_at", Whole),
    Column("removed_at", Whole),  # out of the queue since then; its name may be taken again
    Column("fenced_attempt", Whole),  # what attempts up to this one saved is of a removed job of this name
    one_of("state", "queued", "active", "held", "done", "failed", "cancelled"),
    CheckConstraint("attempts >= 0 AND failures >= 0 AND done_step >= 0", name="counts"),
    Index("ix_jobs_position", "position"),
)

runs = Table(
    "runs",
    metadata,
    Column("key", Words, primary_key=True),
    required("pool", Words),
    required("planned_start", Whole),
    required("deadline", Whole),
    required("held_until", Whole),
    required("state", Words),
    required("state_detail", Words),
    required("reserved_at", Whole),
    Column("ended_at", Whole),
    Column("planned", Words),  # written by older versions
    one_of("state", "reserved", "submitting", "running", "stopping", "ended"),
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
    required("attempt", Whole),
    required("devices", Words),
    Column("restore_step", Whole),
    required("live", Flag),
    Column("outcome", Words),
    Column("end_step", Whole),
    Column("error_class", Words),
    required("message", Words),
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
    required("kind", Words),
    required("pool", Words),
    Column("run", Words, ForeignKey("runs.key")),
    required("starts_at", Whole),
    required("ends_at", Whole),
    required("at", Whole),
    required("credit", Flag),
    required("price_microdollars_per_hour", Whole),
    required("evidence", Words),
    one_of("kind", "hold", "spend", "release", "adjust"),
    CheckConstraint("ends_at >= starts_at", name="interval"),
    CheckConstraint("kind = 'adjust' OR (run IS NOT NULL AND NOT credit)", name="adjust"),
    Index("ix_ledger_run", "run"),
    Index("ix_ledger_ends_at", "ends_at"),
)

events = Table(
    "events",
    metadata,
    Column("id", Serial, primary_key=True),
    required("at", Whole),
    required("kind", Words),
    required("subject", Words),
    required("by", Words),
    required("data", Words),
    Index("ix_events_subject_id", "subject", "id"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("key", Words, primary_key=True),
    Column("job", Words, ForeignKey("jobs.name"), nullable=False),
    required("step", Whole),
    required("attempt", Whole),
    required("manifest", Words),
    required("seen_at", Whole),
    required("state", Words),
    required("why", Words),
    required("pinned", Flag),
    one_of("state", "good", "quarantined", "expired"),
    CheckConstraint("NOT pinned OR state <> 'expired'", name="pinned"),
    Index("ix_checkpoints_job_step", "job", "step"),
)

generations = Table(
    "generations",
    metadata,
    Column("job", Words, ForeignKey("jobs.name"), primary_key=True),
    Column("number", Whole, primary_key=True, autoincrement=False),
    required("first_attempt", Whole),
    required("began_at", Whole),
    Column("parent", Words),
    Column("parent_step", Whole),
    Column("parent_key", Words),
    required("refused", Words),
)

series = Table(
    "series",
    metadata,
    Column("job", Words, ForeignKey("jobs.name"), primary_key=True),
    Column("attempt", Whole, primary_key=True, autoincrement=False),
    Column("step", Whole, primary_key=True, autoincrement=False),
    required("at", Whole),
    Column("loss", Number),
    Column("held_out_loss", Number),
    Column("tokens_per_second", Number),
    Column("step_seconds_p90", Number),
    Column("padding", Number),
    Column("gradient_norm", Number),
    Column("gpu_memory_bytes", Number),
)

trees = Table(
    "trees",
    metadata,
    Column("digest", Words, primary_key=True),
    Column("delete_at", Whole),
    required("going", Flag),
    required("kind", Words),
    Column("origin", Words),
)
discards = Table(
    "discards",
    metadata,
    Column("key", Words, primary_key=True),
    Column("job", Words, ForeignKey("jobs.name"), nullable=False),
    required("why", Words),
    required("marked_at", Whole),
    required("delete_at", Whole),
    CheckConstraint("delete_at >= marked_at", name="grace"),
    Index("ix_discards_job", "job"),
)

watched = Table(
    "watched",
    metadata,
    Column("run", Words, ForeignKey("runs.key"), primary_key=True),
    required("until", Whole),
    Column("booked_start", Whole),
    Column("booked_end", Whole),
    CheckConstraint("(booked_start IS NULL) = (booked_end IS NULL)", name="booked"),
)

pruned = Table(
    "pruned",
    metadata,
    Column("name", Words, primary_key=True),
    required("up_to", Whole),
    one_of("name", "events"),
)

plans = Table(
    "plans",
    metadata,
    Column("id", Serial, primary_key=True),
    required("made_at", Whole),
    required("saved_at", Whole),
    required("digest", Words),
    required("body", Words),
    Index("ix_plans_made_at", "made_at"),
)

rates = Table(
    "rates",
    metadata,
    Column("job", Words, ForeignKey("jobs.name"), primary_key=True),
    Column("pool", Words, primary_key=True),
    required("steps_per_second", Number),
    required("sigma", Number),
    required("samples", Whole),
    required("setup_seconds", Whole),
    required("checkpoint_seconds", Whole),
    required("at", Whole),
    required("delay_seconds", Whole),
    required("setup_sigma", Number),
    required("checkpoint_sigma", Number),
)

limits = Table(
    "limits",
    metadata,
    Column("pool", Words, primary_key=True),
    Column("quota", Words, primary_key=True),
    Column("starts_at", Whole, primary_key=True, autoincrement=False),
    Column("ends_at", Whole, primary_key=True, autoincrement=False),
    required("limit", Whole),
    required("at", Whole),
    required("source", Words),
    CheckConstraint("ends_at >= starts_at", name="interval"),
)

closures = Table(
    "closures",
    metadata,
    Column("pool", Words, primary_key=True),
    Column("until", Whole),
    required("why", Words),
    required("at", Whole),
    required("cause", Words),  # a Cause
)

conditions = Table(
    "conditions",
    metadata,
    Column("kind", Words, primary_key=True),
    Column("subject", Words, primary_key=True),
    Column("what", Words, primary_key=True),
    required("state", Words),
    required("since", Whole),
    required("why", Words),
    one_of("state", "open", "closed"),
)

lease = Table(
    "lease",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    required("holder", Words),
    required("epoch", Whole),
    required("until", Whole),
    CheckConstraint("id = 1", name="one_row"),
)

due = Table(
    "due",
    metadata,
    Column("name", Words, primary_key=True),
    required("at", Whole),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", Serial, primary_key=True),
    required("kind", Words),
    required("period", Words),
    required("channel", Words),
    required("body", Words),
    required("created_at", Whole),
    required("attempts", Whole),
    required("retry_at", Whole),
    Column("sent_at", Whole),
    required("why", Words),
    UniqueConstraint("kind", "period", "channel"),
)

_of_version = (evaluations.c.model, evaluations.c.number)
_of_target = (deployments.c.model, deployments.c.target)
_PARTIAL_INDEXES = (
    ("uq_lanes_job_live", (lanes.c.job,), "live", True),
    ("uq_ledger_run_settled", (ledger.c.run,), "kind IN ('spend', 'release')", True),
    ("ix_outbox_pending", (outbox.c.retry_at,), "sent_at IS NULL", False),
    ("uq_evaluations_open", _of_version, "state = 'open'", True),
    ("uq_deployments_intended", _of_target, "state = 'intended'", True),
    ("uq_deployments_serving", _of_target, "state = 'serving'", True),
)


@cache
def complete() -> MetaData:
    """Return the metadata with its partial indexes, as migrations are compared to it.

    They are added on demand: their options make SQLAlchemy load both dialects, a tenth of the start of a command.
    """
    for name, columns, condition, unique in _PARTIAL_INDEXES:
        Index(name, *columns, unique=unique, sqlite_where=text(condition), postgresql_where=text(condition))
    return metadata
