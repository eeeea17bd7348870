"""Tables and the rules the database enforces itself.

Times are integer UTC seconds, structured values canonical JSON. Ledger and events are append-only: triggers made by
the migrations refuse UPDATE, DELETE and REPLACE. Old events alone may go, up to the id that ``pruned`` names.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import TypeDecorator

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect

REVISIONS = ("0001", "0002", "0003", "0004")
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


class Words(TypeDecorator[str]):
    """Text from anywhere: what no database can hold (NUL, half a surrogate pair) is replaced, not refused."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return ``value`` with unstorable characters replaced."""
        del dialect
        if value is None or (value.isascii() and "\0" not in value):
            return value
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


# SQLite numbers rows by itself only in a column whose type is exactly INTEGER.
_Serial = BigInteger().with_variant(Integer(), "sqlite")


def _one_of(column: str, *values: str) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


def _required(name: str, kind: Any) -> Column[Any]:
    return Column(name, kind, nullable=False)


jobs = Table(
    "jobs",
    metadata,
    Column("name", Words, primary_key=True),
    _required("position", BigInteger),
    _required("role", Words),
    _required("weight", Float),
    _required("target_step", BigInteger),
    Column("not_before", BigInteger),
    Column("deadline", BigInteger),
    _required("spec", Text),  # the other fields of the JobSpec
    _required("state", Text),
    _required("state_detail", Text),
    _required("attempts", BigInteger),
    _required("failures", BigInteger),
    _required("done_step", BigInteger),
    Column("checkpoint", Words),
    Column("last_pool", Words),
    _required("created_at", BigInteger),
    _one_of("state", "queued", "active", "held", "done", "failed", "cancelled"),
    CheckConstraint("attempts >= 0 AND failures >= 0 AND done_step >= 0", name="counts"),
    Index("ix_jobs_position", "position"),
)

runs = Table(
    "runs",
    metadata,
    Column("key", Words, primary_key=True),
    _required("pool", Words),
    _required("planned_start", BigInteger),
    _required("deadline", BigInteger),
    _required("held_until", BigInteger),
    _required("state", Text),
    _required("state_detail", Text),
    _required("reserved_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("planned", Text),
    _one_of("state", "reserved", "submitting", "running", "stopping", "ended"),
    CheckConstraint("(state = 'ended') = (ended_at IS NOT NULL)", name="ended_at"),
    Index("ix_runs_ended_at", "ended_at"),
    Index("ix_runs_reserved_at", "reserved_at"),
)

lanes = Table(
    "lanes",
    metadata,
    Column("run", Words, ForeignKey("runs.key"), primary_key=True),
    Column("lane", BigInteger, primary_key=True, autoincrement=False),
    Column("job", Words, ForeignKey("jobs.name"), nullable=False),
    _required("attempt", BigInteger),
    _required("devices", Text),
    Column("restore_step", BigInteger),
    _required("live", Boolean),
    Column("outcome", Text),
    Column("end_step", BigInteger),
    Column("error_class", Words),
    _required("message", Words),
    Column("heartbeat", Text),
    UniqueConstraint("job", "attempt"),
    CheckConstraint("NOT live OR outcome IS NULL", name="live"),
)

ledger = Table(
    "ledger",
    metadata,
    Column("id", _Serial, primary_key=True),
    _required("kind", Text),
    _required("pool", Words),
    Column("run", Words, ForeignKey("runs.key")),
    _required("starts_at", BigInteger),
    _required("ends_at", BigInteger),
    _required("at", BigInteger),
    _required("credit", Boolean),
    _required("price_microdollars_per_hour", BigInteger),
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
    Column("id", _Serial, primary_key=True),
    _required("at", BigInteger),
    _required("kind", Words),
    _required("subject", Words),
    _required("by", Words),
    _required("data", Text),
    Index("ix_events_subject_id", "subject", "id"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("key", Words, primary_key=True),
    Column("job", Words, ForeignKey("jobs.name"), nullable=False),
    _required("step", BigInteger),
    _required("attempt", BigInteger),
    _required("manifest", Text),
    _required("seen_at", BigInteger),
    _required("state", Text),
    _required("why", Words),
    _required("pinned", Boolean),
    _one_of("state", "good", "quarantined", "expired"),
    CheckConstraint("NOT pinned OR state <> 'expired'", name="pinned"),
    Index("ix_checkpoints_job_step", "job", "step"),
)

discards = Table(
    "discards",
    metadata,
    Column("key", Words, primary_key=True),
    Column("job", Words, ForeignKey("jobs.name"), nullable=False),
    _required("why", Words),
    _required("marked_at", BigInteger),
    _required("delete_at", BigInteger),
    CheckConstraint("delete_at >= marked_at", name="grace"),
    Index("ix_discards_job", "job"),
)

watched = Table(
    "watched",
    metadata,
    Column("run", Words, ForeignKey("runs.key"), primary_key=True),
    _required("until", BigInteger),
    Column("booked_start", BigInteger),
    Column("booked_end", BigInteger),
    CheckConstraint("(booked_start IS NULL) = (booked_end IS NULL)", name="booked"),
)

pruned = Table(
    "pruned",
    metadata,
    Column("name", Text, primary_key=True),
    _required("up_to", BigInteger),
    _one_of("name", "events"),
)

plans = Table(
    "plans",
    metadata,
    Column("id", _Serial, primary_key=True),
    _required("made_at", BigInteger),
    _required("saved_at", BigInteger),
    _required("digest", Text),
    _required("body", Text),
    Index("ix_plans_made_at", "made_at"),
)

rates = Table(
    "rates",
    metadata,
    Column("job", Words, ForeignKey("jobs.name"), primary_key=True),
    Column("pool", Words, primary_key=True),
    _required("steps_per_second", Float),
    _required("sigma", Float),
    _required("samples", BigInteger),
    _required("setup_seconds", BigInteger),
    _required("checkpoint_seconds", BigInteger),
    _required("at", BigInteger),
    _required("delay_seconds", BigInteger),
    _required("setup_sigma", Float),
    _required("checkpoint_sigma", Float),
)

limits = Table(
    "limits",
    metadata,
    Column("pool", Words, primary_key=True),
    Column("quota", Words, primary_key=True),
    Column("starts_at", BigInteger, primary_key=True, autoincrement=False),
    Column("ends_at", BigInteger, primary_key=True, autoincrement=False),
    _required("limit", BigInteger),
    _required("at", BigInteger),
    _required("source", Words),
    CheckConstraint("ends_at >= starts_at", name="interval"),
)

closures = Table(
    "closures",
    metadata,
    Column("pool", Words, primary_key=True),
    Column("until", BigInteger),
    _required("why", Words),
    _required("at", BigInteger),
)

lease = Table(
    "lease",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    _required("holder", Words),
    _required("epoch", BigInteger),
    _required("until", BigInteger),
    CheckConstraint("id = 1", name="one_row"),
)

due = Table(
    "due",
    metadata,
    Column("name", Words, primary_key=True),
    _required("at", BigInteger),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", _Serial, primary_key=True),
    _required("kind", Words),
    _required("period", Words),
    _required("channel", Words),
    _required("body", Text),
    _required("created_at", BigInteger),
    _required("attempts", BigInteger),
    _required("retry_at", BigInteger),
    Column("sent_at", BigInteger),
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
