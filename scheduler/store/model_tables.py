"""Tables of models: versions, evaluations, verdicts, which version is in force, and where which one is deployed.

A version is named by model and number. Numbers come from ``models.counter``, which only grows: a number is never given
twice. Rows are never deleted; verdicts are never changed either, which triggers made by the migrations see to.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, ForeignKey, ForeignKeyConstraint, Index, Table, UniqueConstraint

from scheduler.store.columns import Serial, Whole, Words
from scheduler.store.declare import metadata, one_of, required


def _of_version() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["model", "number"], ["model_versions.model", "model_versions.number"])


models = Table(
    "models",
    metadata,
    Column("name", Words, ForeignKey("jobs.name"), primary_key=True),
    required("counter", Whole),  # the newest number that was given to a version
)

model_versions = Table(
    "model_versions",
    metadata,
    Column("model", Words, ForeignKey("models.name"), primary_key=True),
    Column("number", Whole, primary_key=True, autoincrement=False),
    Column("checkpoint", Words, ForeignKey("checkpoints.key"), nullable=False),
    required("digest", Words),  # of what the checkpoint holds: the same again is the same version
    required("step", Whole),
    Column("code", Words),
    Column("environment", Words),
    Column("corpus", Words),
    Column("mixture", Words),
    Column("parent", Words),
    Column("parent_number", Whole),  # None: it started from a checkpoint that is no version
    Column("parent_key", Words),
    required("state", Words),
    required("why", Words),
    required("created_at", Whole),
    one_of("state", "candidate", "evaluating", "accepted", "rejected", "inconclusive", "retired"),
    UniqueConstraint("model", "digest"),
)

evaluations = Table(
    "evaluations",
    metadata,
    Column("id", Serial, primary_key=True),
    required("model", Words),
    required("number", Whole),
    Column("job", Words, ForeignKey("jobs.name"), nullable=False),
    required("set_digest", Words),
    required("scorer_digest", Words),
    required("state", Words),
    required("began_at", Whole),
    Column("ended_at", Whole),
    required("error", Words),
    one_of("state", "open", "scored", "failed"),
    CheckConstraint("(state = 'open') = (ended_at IS NULL)", name="ended_at"),
    UniqueConstraint("job"),
    _of_version(),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("id", Serial, primary_key=True),
    required("model", Words),
    required("number", Whole),
    Column("evaluation", Whole, ForeignKey("evaluations.id"), nullable=False),
    required("gates_digest", Words),
    required("set_digest", Words),
    required("verdict", Words),
    required("evidence", Words),
    required("at", Whole),
    one_of("verdict", "accepted", "rejected", "inconclusive"),
    UniqueConstraint("model", "number", "gates_digest", "set_digest"),
    _of_version(),
    Index("ix_verdicts_set_digest", "set_digest"),
)

overrules = Table(
    "overrules",
    metadata,
    Column("id", Serial, primary_key=True),
    required("model", Words),
    required("number", Whole),
    required("was", Words),
    required("verdict", Words),
    required("by", Words),
    required("why", Words),
    required("at", Whole),
    one_of("verdict", "accepted", "rejected"),
    _of_version(),
)

promotions = Table(
    "promotions",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("model", Words, ForeignKey("models.name"), nullable=False),
    required("kind", Words),
    Column("number", Whole),  # in force from now on; None: none is
    Column("was", Whole),
    required("by", Words),
    required("why", Words),
    required("at", Whole),
    one_of("kind", "promote", "rollback"),
    Index("ix_promotions_model_id", "model", "id"),
)

deployments = Table(
    "deployments",
    metadata,
    Column("id", Serial, primary_key=True),
    required("model", Words),
    required("number", Whole),
    required("target", Words),
    required("state", Words),
    required("by", Words),
    required("why", Words),
    required("evidence", Words),
    required("intended_at", Whole),
    Column("served_at", Whole),
    Column("ended_at", Whole),
    one_of("state", "intended", "serving", "returned", "failed", "replaced"),
    CheckConstraint("(state IN ('intended', 'serving')) = (ended_at IS NULL)", name="ended_at"),
    CheckConstraint("state NOT IN ('serving', 'replaced') OR served_at IS NOT NULL", name="served_at"),
    _of_version(),
)
