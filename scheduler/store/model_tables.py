"""Tables of models: versions, evaluations, verdicts, which version is in force, and where which one is deployed.

A version is named by model and number. Numbers come from ``models.counter``, which only grows: a number is never given
twice. Rows are never deleted; verdicts are never changed either, which triggers made by the migrations see to.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, ForeignKey, ForeignKeyConstraint, Index, Table, UniqueConstraint

from scheduler.store.columns import Serial, Whole, Words
from scheduler.store.declare import metadata, one_of, optional, required


def _of_version() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["model", "number"], ["model_versions.model", "model_versions.number"])


models = Table(
    "models",
    metadata,
    Column("name", Words, ForeignKey("jobs.name"), primary_key=True),
    *required(Whole, "counter"),  # the newest number that was given to a version
)

model_versions = Table(
    "model_versions",
    metadata,
    Column("model", Words, ForeignKey("models.name"), primary_key=True),
    Column("number", Whole, primary_key=True, autoincrement=False),
    Column("checkpoint", Words, ForeignKey("checkpoints.key"), nullable=False),
    *required(Words, "digest"),  # of what the checkpoint holds: the same again is the same version
    *required(Whole, "step"),
    *optional(Words, "code", "environment", "corpus", "mixture", "parent"),
    *optional(Whole, "parent_number"),  # None: it started from a checkpoint that is no version
    *optional(Words, "parent_key"),
    *required(Words, "state", "why"),
    *required(Whole, "created_at"),
    one_of("state", "candidate", "evaluating", "accepted", "rejected", "inconclusive", "retired"),
    UniqueConstraint("model", "digest"),
)

evaluations = Table(
    "evaluations",
    metadata,
    Column("id", Serial, primary_key=True),
    *required(Words, "model"),
    *required(Whole, "number"),
    Column("job", Words, ForeignKey("jobs.name"), nullable=False),
    *required(Words, "set_digest", "scorer_digest", "state"),
    *required(Whole, "began_at"),
    *optional(Whole, "ended_at"),
    *required(Words, "error"),
    one_of("state", "open", "scored", "failed"),
    CheckConstraint("(state = 'open') = (ended_at IS NULL)", name="ended_at"),
    UniqueConstraint("job"),
    _of_version(),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("id", Serial, primary_key=True),
    *required(Words, "model"),
    *required(Whole, "number"),
    Column("evaluation", Whole, ForeignKey("evaluations.id"), nullable=False),
    *required(Words, "gates_digest", "set_digest", "verdict", "evidence"),
    *required(Whole, "at"),
    one_of("verdict", "accepted", "rejected", "inconclusive"),
    UniqueConstraint("model", "number", "gates_digest", "set_digest"),
    _of_version(),
    Index("ix_verdicts_set_digest", "set_digest"),
)

overrules = Table(
    "overrules",
    metadata,
    Column("id", Serial, primary_key=True),
    *required(Words, "model"),
    *required(Whole, "number"),
    *required(Words, "was", "verdict", "by", "why"),
    *required(Whole, "at"),
    one_of("verdict", "accepted", "rejected"),
    _of_version(),
)

promotions = Table(
    "promotions",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("model", Words, ForeignKey("models.name"), nullable=False),
    *required(Words, "kind"),
    *optional(Whole, "number"),  # in force from now on; None: none is
    *optional(Whole, "was"),
    *required(Words, "by", "why"),
    *required(Whole, "at"),
    one_of("kind", "promote", "rollback"),
    Index("ix_promotions_model_id", "model", "id"),
)

deployments = Table(
    "deployments",
    metadata,
    Column("id", Serial, primary_key=True),
    *required(Words, "model"),
    *required(Whole, "number"),
    *required(Words, "target", "state", "by", "why", "evidence"),
    *required(Whole, "intended_at"),
    *optional(Whole, "served_at", "ended_at"),
    one_of("state", "intended", "serving", "returned", "failed", "replaced"),
    CheckConstraint("(state IN ('intended', 'serving')) = (ended_at IS NULL)", name="ended_at"),
    CheckConstraint("state NOT IN ('serving', 'replaced') OR served_at IS NOT NULL", name="served_at"),
    _of_version(),
)
