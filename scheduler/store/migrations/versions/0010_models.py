"""Models: versions, how they were judged, which one is promoted, and where which one is deployed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from scheduler.store.columns import Serial, key, one_of, optional, required, rows

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Begin with nothing: before, a job's end was all that was known of its model."""
    make_versions()
    make_judgement()
    make_use()
    keep_verdicts()


def of_version() -> sa.ForeignKeyConstraint:
    """What a row is about is a version."""
    return sa.ForeignKeyConstraint(["model", "number"], ["model_versions.model", "model_versions.number"])


def make_versions() -> None:
    """Versions and their numbers."""
    op.create_table(
        "models",
        *key(sa.Text(), "name"),
        *required(sa.BigInteger(), "counter"),
        sa.ForeignKeyConstraint(["name"], ["jobs.name"]),
    )
    op.create_table(
        "model_versions",
        *key(sa.Text(), "model"),
        *key(sa.BigInteger(), "number"),
        *required(sa.Text(), "checkpoint", "digest"),
        *required(sa.BigInteger(), "step"),
        *optional(sa.Text(), "code", "environment", "corpus", "mixture", "parent"),
        *optional(sa.BigInteger(), "parent_number"),
        *optional(sa.Text(), "parent_key"),
        *required(sa.Text(), "state", "why"),
        *required(sa.BigInteger(), "created_at"),
        one_of("state", "candidate", "evaluating", "accepted", "rejected", "inconclusive", "retired"),
        sa.ForeignKeyConstraint(["checkpoint"], ["checkpoints.key"]),
        sa.ForeignKeyConstraint(["model"], ["models.name"]),
        sa.UniqueConstraint("model", "digest"),
    )


def make_judgement() -> None:
    """Evaluations, verdicts, and what people said against these."""
    op.create_table(
        "evaluations",
        sa.Column("id", Serial, primary_key=True),
        *required(sa.Text(), "model"),
        *required(sa.BigInteger(), "number"),
        *required(sa.Text(), "job", "set_digest", "scorer_digest", "state"),
        *required(sa.BigInteger(), "began_at"),
        *optional(sa.BigInteger(), "ended_at"),
        *required(sa.Text(), "error"),
        sa.CheckConstraint("(state = 'open') = (ended_at IS NULL)", name="ended_at"),
        one_of("state", "open", "scored", "failed"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"]),
        of_version(),
        sa.UniqueConstraint("job"),
    )
    op.create_index("uq_evaluations_open", "evaluations", ["model", "number"], unique=True, **rows("state = 'open'"))
    op.create_table(
        "verdicts",
        sa.Column("id", Serial, primary_key=True),
        *required(sa.Text(), "model"),
        *required(sa.BigInteger(), "number", "evaluation"),
        *required(sa.Text(), "gates_digest", "set_digest", "verdict", "evidence"),
        *required(sa.BigInteger(), "at"),
        one_of("verdict", "accepted", "rejected", "inconclusive"),
        sa.ForeignKeyConstraint(["evaluation"], ["evaluations.id"]),
        of_version(),
        sa.UniqueConstraint("model", "number", "gates_digest", "set_digest"),
    )
    op.create_index("ix_verdicts_set_digest", "verdicts", ["set_digest"])
    op.create_table(
        "overrules",
        sa.Column("id", Serial, primary_key=True),
        *required(sa.Text(), "model"),
        *required(sa.BigInteger(), "number"),
        *required(sa.Text(), "was", "verdict", "by", "why"),
        *required(sa.BigInteger(), "at"),
        one_of("verdict", "accepted", "rejected"),
        of_version(),
    )


def make_use() -> None:
    """Which version is promoted, and where which one is deployed."""
    op.create_table(
        "promotions",
        sa.Column("id", Serial, primary_key=True),
        *required(sa.Text(), "model", "kind"),
        *optional(sa.BigInteger(), "number", "was"),
        *required(sa.Text(), "by", "why"),
        *required(sa.BigInteger(), "at"),
        one_of("kind", "promote", "rollback"),
        sa.ForeignKeyConstraint(["model"], ["models.name"]),
    )
    op.create_index("ix_promotions_model_id", "promotions", ["model", "id"])
    op.create_table(
        "deployments",
        sa.Column("id", Serial, primary_key=True),
        *required(sa.Text(), "model"),
        *required(sa.BigInteger(), "number"),
        *required(sa.Text(), "target", "state", "by", "why", "evidence"),
        *required(sa.BigInteger(), "intended_at"),
        *optional(sa.BigInteger(), "served_at", "ended_at"),
        sa.CheckConstraint("(state IN ('intended', 'serving')) = (ended_at IS NULL)", name="ended_at"),
        sa.CheckConstraint("state NOT IN ('serving', 'replaced') OR served_at IS NOT NULL", name="served_at"),
        one_of("state", "intended", "serving", "returned", "failed", "replaced"),
        of_version(),
    )
    for state in ("intended", "serving"):
        name, wanted = f"uq_deployments_{state}", rows(f"state = '{state}'")
        op.create_index(name, "deployments", ["model", "target"], unique=True, **wanted)


def keep_verdicts() -> None:
    """Let the database refuse to change or delete a verdict."""
    if op.get_context().dialect.name == "sqlite":
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER verdicts_no_{change.lower()} BEFORE {change} ON verdicts "
                "BEGIN SELECT RAISE(ABORT, 'verdicts is append-only'); END"
            )
        return
    op.execute(
        "CREATE TRIGGER verdicts_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON verdicts "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )
