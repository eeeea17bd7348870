"""Tables, and the constraints that the database enforces.

Times are integer UTC seconds, structured values are canonical JSON. Ledger and events are append-only: triggers refuse
UPDATE, DELETE and REPLACE. Only events up to the ID in ``pruned`` may be deleted.
"""

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from jobs.lane_report import Telemetry


class WrongType(ValueError):
    """A column contains a value of a type that is never written there: the row is damaged."""

    def __init__(self, expected: str, value: object) -> None:
        super().__init__(f"{type(value).__name__} where {expected} is written")


class _Checked:
    """A type that checks values when they are read, because SQLite returns whatever a damaged file contains.

    PostgreSQL enforces the types of its columns.
    """

    written: tuple[type, ...]

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """Return the function that checks and converts a value; it raises WrongType."""
        above: Any = super()
        convert = above.result_processor(dialect, coltype)
        good = {*self.written, type(None)}
        name = f"a {type(self).__name__.lower()}"

        def checked(value: Any) -> Any:
            if type(value) not in good:
                raise WrongType(name, value)
            return value if convert is None else convert(value)

        return checked


class Whole(_Checked, sa.BigInteger):
    """A whole number of 64 bits."""

    written = (int,)


class Number(_Checked, sa.Float[float]):
    """A number."""

    written = (float, int)


class Flag(_Checked, sa.Boolean):
    """True or false."""

    written = (bool, int)


class Words(TypeDecorator[str]):
    """Text from anywhere; characters that no database can store (NUL, half a surrogate pair) are replaced."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return ``value`` with unstorable characters replaced."""
        del dialect
        if value is None or (value.isascii() and "\0" not in value):
            return value
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], str | None]:
        """Return the function that checks a value; it raises WrongType. Our drivers do not convert text."""
        del dialect, coltype
        return _text


def _text(value: Any) -> str | None:
    if value is None or type(value) is str:
        return value
    raise WrongType("text", value)


# SQLite numbers rows automatically only if the type of the column is exactly INTEGER.
Serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

# Declaration of tables: the names of constraints, and columns that many tables have.
#
# Migrations create missing tables and columns from these declarations. So a column that is added later must allow NULL,
# or its revision needs a step in migrations.py.
metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def table(name: str, *parts: Any) -> sa.Table:
    """Return a new table of :data:`metadata`; ``parts`` are its columns, constraints and indexes."""
    return sa.Table(name, metadata, *parts)


def one_of(column: str, *values: str) -> sa.CheckConstraint:
    """Return the constraint that a column has one of these values."""
    listed = ", ".join(f"'{value}'" for value in values)
    return sa.CheckConstraint(f"{column} IN ({listed})", name=column)


def key(kind: Any, *names: str) -> list[sa.Column[Any]]:
    """Return primary key columns of one type."""
    return [sa.Column(name, kind, primary_key=True, autoincrement=False) for name in names]


def required(kind: Any, *names: str) -> list[sa.Column[Any]]:
    """Return columns of one type that must have a value."""
    return [sa.Column(name, kind, nullable=False) for name in names]


def optional(kind: Any, *names: str) -> list[sa.Column[Any]]:
    """Return columns of one type that may be NULL."""
    return [sa.Column(name, kind) for name in names]


def rows(condition: str) -> dict[str, Any]:
    """Return the options that limit an index to rows which meet a condition."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


# Tables of models: versions, evaluations, verdicts, promotions and deployments.
#
# A version is identified by model and number. Numbers come from ``models.counter``, which only grows, so a number is
# never used twice. Rows are never deleted; triggers also prevent changes of verdicts.
def of_version() -> list[Any]:
    """Return the columns that identify the version of a row, with their foreign key."""
    named = sa.ForeignKeyConstraint(["model", "number"], ["model_versions.model", "model_versions.number"])
    return [*required(Words, "model"), *required(Whole, "number"), named]


models = table(
    "models",
    sa.Column("name", Words, sa.ForeignKey("jobs.name"), primary_key=True),
    *required(Whole, "counter"),  # the newest number of a version
)

model_versions = table(
    "model_versions",
    sa.Column("model", Words, sa.ForeignKey("models.name"), primary_key=True),
    *key(Whole, "number"),
    sa.Column("checkpoint", Words, sa.ForeignKey("checkpoints.key"), nullable=False),
    *required(Words, "digest"),  # of the checkpoint's content: the same content is the same version
    *required(Whole, "step"),
    *optional(Words, "code", "environment", "corpus", "mixture", "parent"),
    *optional(Whole, "parent_number"),  # None: it was initialised from a checkpoint without a version
    *optional(Words, "parent_key"),
    *required(Words, "state", "why"),
    *required(Whole, "created_at"),
    one_of("state", "candidate", "evaluating", "accepted", "rejected", "inconclusive", "retired"),
    sa.UniqueConstraint("model", "digest"),
)

evaluations = table(
    "evaluations",
    sa.Column("id", Serial, primary_key=True),
    *of_version(),
    sa.Column("job", Words, sa.ForeignKey("jobs.name"), nullable=False),
    *required(Words, "set_digest", "scorer_digest", "state"),
    *required(Whole, "began_at"),
    *optional(Whole, "ended_at"),
    *required(Words, "error"),
    one_of("state", "open", "scored", "failed"),
    sa.CheckConstraint("(state = 'open') = (ended_at IS NULL)", name="ended_at"),
    sa.UniqueConstraint("job"),
)

verdicts = table(
    "verdicts",
    sa.Column("id", Serial, primary_key=True),
    *of_version(),
    sa.Column("evaluation", Whole, sa.ForeignKey("evaluations.id"), nullable=False),
    *required(Words, "gates_digest", "set_digest", "verdict", "evidence"),
    *required(Whole, "at"),
    one_of("verdict", "accepted", "rejected", "inconclusive"),
    sa.UniqueConstraint("model", "number", "gates_digest", "set_digest"),
    sa.Index("ix_verdicts_set_digest", "set_digest"),
)

overrules = table(
    "overrules",
    sa.Column("id", Serial, primary_key=True),
    *of_version(),
    *required(Words, "was", "verdict", "by", "why"),
    *required(Whole, "at"),
    one_of("verdict", "accepted", "rejected"),
)

promotions = table(
    "promotions",
    sa.Column("id", Serial, primary_key=True),
    sa.Column("model", Words, sa.ForeignKey("models.name"), nullable=False),
    *required(Words, "kind"),
    *optional(Whole, "number"),  # the version that is now promoted; None: no version
    *optional(Whole, "was"),
    *required(Words, "by", "why"),
    *required(Whole, "at"),
    one_of("kind", "promote", "rollback"),
    sa.Index("ix_promotions_model_id", "model", "id"),
)

deployments = table(
    "deployments",
    sa.Column("id", Serial, primary_key=True),
    *of_version(),
    *required(Words, "target", "state", "by", "why", "evidence"),
    *required(Whole, "intended_at"),
    *optional(Whole, "served_at", "ended_at"),
    one_of("state", "intended", "serving", "returned", "failed", "replaced"),
    sa.CheckConstraint("(state IN ('intended', 'serving')) = (ended_at IS NULL)", name="ended_at"),
    sa.CheckConstraint("state NOT IN ('serving', 'replaced') OR served_at IS NOT NULL", name="served_at"),
)

REVISIONS = tuple(f"{number:04}" for number in range(1, 17))
"""All schema revisions of this version, oldest first. They are here, so that opening a database loads no alembic."""

jobs = table(
    "jobs",
    *key(Words, "name"),
    *required(Whole, "position"),
    *required(Words, "role"),
    *required(Number, "weight"),
    *required(Whole, "target_step"),
    *optional(Whole, "not_before", "deadline"),
    *required(Words, "spec"),  # the other fields of the JobSpec
    *required(Words, "state", "state_detail"),
    *required(Whole, "attempts", "failures", "done_step"),
    *optional(Words, "checkpoint", "last_pool"),
    *required(Whole, "created_at"),
    *optional(Whole, "removed_at"),  # when it left the queue; its name may be used again
    *optional(Whole, "fenced_attempt"),  # attempts up to this number belong to a removed job of this name
    one_of("state", "queued", "active", "held", "done", "failed", "cancelled"),
    sa.CheckConstraint("attempts >= 0 AND failures >= 0 AND done_step >= 0", name="counts"),
    sa.Index("ix_jobs_position", "position"),
)

runs = table(
    "runs",
    *key(Words, "key"),
    *required(Words, "pool"),
    *required(Whole, "planned_start", "deadline", "held_until"),
    *required(Words, "state", "state_detail"),
    *required(Whole, "reserved_at"),
    *optional(Whole, "ended_at"),
    *optional(Words, "planned"),  # written by older versions
    one_of("state", "reserved", "submitting", "running", "stopping", "ended"),
    sa.CheckConstraint("(state = 'ended') = (ended_at IS NOT NULL)", name="ended_at"),
    sa.Index("ix_runs_ended_at", "ended_at"),
    sa.Index("ix_runs_reserved_at", "reserved_at"),
)

lanes = table(
    "lanes",
    sa.Column("run", Words, sa.ForeignKey("runs.key"), primary_key=True),
    *key(Whole, "lane"),
    sa.Column("job", Words, sa.ForeignKey("jobs.name"), nullable=False),
    *required(Whole, "attempt"),
    *required(Words, "devices"),
    *optional(Whole, "restore_step"),
    *required(Flag, "live"),
    *optional(Words, "outcome"),
    *optional(Whole, "end_step"),
    *optional(Words, "error_class"),
    *required(Words, "message"),
    *optional(Words, "heartbeat", "code", "trees"),
    *optional(Whole, "begun_at"),  # set for a lane that joined a running session
    sa.UniqueConstraint("job", "attempt"),
    sa.CheckConstraint("NOT live OR outcome IS NULL", name="live"),
)

ledger = table(
    "ledger",
    sa.Column("id", Serial, primary_key=True),
    *required(Words, "kind", "pool"),
    sa.Column("run", Words, sa.ForeignKey("runs.key")),
    *required(Whole, "starts_at", "ends_at", "at"),
    *required(Flag, "credit"),
    *required(Whole, "price_microdollars_per_hour"),
    *required(Words, "evidence"),
    one_of("kind", "hold", "spend", "release", "adjust"),
    sa.CheckConstraint("ends_at >= starts_at", name="interval"),
    sa.CheckConstraint("kind = 'adjust' OR (run IS NOT NULL AND NOT credit)", name="adjust"),
    sa.Index("ix_ledger_run", "run"),
    sa.Index("ix_ledger_ends_at", "ends_at"),
)

events = table(
    "events",
    sa.Column("id", Serial, primary_key=True),
    *required(Whole, "at"),
    *required(Words, "kind", "subject", "by", "data"),
    sa.Index("ix_events_subject_id", "subject", "id"),
)

checkpoints = table(
    "checkpoints",
    *key(Words, "key"),
    sa.Column("job", Words, sa.ForeignKey("jobs.name"), nullable=False),
    *required(Whole, "step", "attempt"),
    *required(Words, "manifest"),
    *required(Whole, "seen_at"),
    *required(Words, "state", "why"),
    *required(Flag, "pinned"),
    one_of("state", "good", "quarantined", "expired"),
    sa.CheckConstraint("NOT pinned OR state <> 'expired'", name="pinned"),
    sa.Index("ix_checkpoints_job_step", "job", "step"),
)

generations = table(
    "generations",
    sa.Column("job", Words, sa.ForeignKey("jobs.name"), primary_key=True),
    *key(Whole, "number"),
    *required(Whole, "first_attempt", "began_at"),
    *optional(Words, "parent"),
    *optional(Whole, "parent_step"),
    *optional(Words, "parent_key"),
    *required(Words, "refused"),
)

series = table(
    "series",
    sa.Column("job", Words, sa.ForeignKey("jobs.name"), primary_key=True),
    *key(Whole, "attempt", "step"),
    *required(Whole, "at"),
    *optional(Number, "loss", "held_out_loss", *(metric.name for metric in fields(Telemetry))),
)

trees = table(
    "trees",
    *key(Words, "digest"),
    *optional(Whole, "delete_at"),
    *required(Flag, "going"),
    *required(Words, "kind"),
    *optional(Words, "origin"),
)
discards = table(
    "discards",
    *key(Words, "key"),
    sa.Column("job", Words, sa.ForeignKey("jobs.name"), nullable=False),
    *required(Words, "why"),
    *required(Whole, "marked_at", "delete_at"),
    sa.CheckConstraint("delete_at >= marked_at", name="grace"),
    sa.Index("ix_discards_job", "job"),
)

watched = table(
    "watched",
    sa.Column("run", Words, sa.ForeignKey("runs.key"), primary_key=True),
    *required(Whole, "until"),
    *optional(Whole, "booked_start", "booked_end"),
    sa.CheckConstraint("(booked_start IS NULL) = (booked_end IS NULL)", name="booked"),
)

pruned = table("pruned", *key(Words, "name"), *required(Whole, "up_to"), one_of("name", "events"))

plans = table(
    "plans",
    sa.Column("id", Serial, primary_key=True),
    *required(Whole, "made_at", "saved_at"),
    *required(Words, "digest", "body"),
    sa.Index("ix_plans_made_at", "made_at"),
)

rates = table(
    "rates",
    sa.Column("job", Words, sa.ForeignKey("jobs.name"), primary_key=True),
    *key(Words, "pool"),
    *required(Number, "steps_per_second", "sigma"),
    *required(Whole, "samples", "setup_seconds", "checkpoint_seconds", "at", "delay_seconds"),
    *required(Number, "setup_sigma", "checkpoint_sigma"),
)

limits = table(
    "limits",
    *key(Words, "pool", "quota"),
    *key(Whole, "starts_at", "ends_at"),
    *required(Whole, "limit", "at"),
    *required(Words, "source"),
    sa.CheckConstraint("ends_at >= starts_at", name="interval"),
)

closures = table(
    "closures",
    *key(Words, "pool"),
    *optional(Whole, "until"),
    *required(Words, "why"),
    *required(Whole, "at"),
    *required(Words, "cause"),  # a value of Cause
)

conditions = table(
    "conditions",
    *key(Words, "kind", "subject", "what"),
    *required(Words, "state"),
    *required(Whole, "since"),
    *required(Words, "why"),
    one_of("state", "open", "closed"),
)

lease = table(
    "lease",
    *key(sa.Integer, "id"),
    *required(Words, "holder"),
    *required(Whole, "epoch", "until"),
    sa.CheckConstraint("id = 1", name="one_row"),
)

due = table("due", *key(Words, "name"), *required(Whole, "at"))

outbox = table(
    "outbox",
    sa.Column("id", Serial, primary_key=True),
    *required(Words, "kind", "period", "channel", "body"),
    *required(Whole, "created_at", "attempts", "retry_at"),
    *optional(Whole, "sent_at"),
    *required(Words, "why"),
    sa.UniqueConstraint("kind", "period", "channel"),
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
def complete() -> sa.MetaData:
    """Return the metadata with its partial indexes, to create tables and to compare databases with it.

    The indexes are added on demand: their options make SQLAlchemy load both dialects, a tenth of a command's start
    time.
    """
    for name, columns, condition, unique in _PARTIAL_INDEXES:
        sa.Index(name, *columns, unique=unique, **rows(condition))
    return metadata
