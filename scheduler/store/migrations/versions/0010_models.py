"""Models: versions, how they were judged, which one is in force, and where which one is deployed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from scheduler.store.columns import Serial, optional, required, rows

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Begin with nothing: before, a job's end was all that was known of its model."""
    make_versions()
    make_judgement()
    make_use()
    keep_verdicts()


def of_version(table: str) -> sa.ForeignKeyConstraint:
    """What a row of ``table`` is about is a version."""
    name = op.f(f"fk_{table}_model_number")
    return sa.ForeignKeyConstraint(["model", "number"], ["model_versions.model", "model_versions.number"], name=name)


def make_versions() -> None:
    """Versions and their numbers."""
    op.create_table(
        "models",
        *required(sa.Text(), "name"),
        *required(sa.BigInteger(), "counter"),
        sa.ForeignKeyConstraint(["name"], ["jobs.name"], name=op.f("fk_models_name")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_models")),
    )
    op.create_table(
        "model_versions",
        *required(sa.Text(), "model"),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        *required(sa.Text(), "checkpoint", "digest"),
        *required(sa.BigInteger(), "step"),
        *optional(sa.Text(), "code", "environment", "corpus", "mixture", "parent"),
        *optional(sa.BigInteger(), "parent_number"),
        *optional(sa.Text(), "parent_key"),
        *required(sa.Text(), "state", "why"),
        *required(sa.BigInteger(), "created_at"),
        sa.CheckConstraint(
            "state IN ('candidate', 'evaluating', 'accepted', 'rejected', 'inconclusive', 'retired')",
            name=op.f("ck_model_versions_state"),
        ),
        sa.ForeignKeyConstraint(["checkpoint"], ["checkpoints.key"], name=op.f("fk_model_versions_checkpoint")),
        sa.ForeignKeyConstraint(["model"], ["models.name"], name=op.f("fk_model_versions_model")),
        sa.PrimaryKeyConstraint("model", "number", name=op.f("pk_model_versions")),
        sa.UniqueConstraint("model", "digest", name=op.f("uq_model_versions_model_digest")),
    )


def make_judgement() -> None:
    """Evaluations, verdicts, and what people said against these."""
    op.create_table(
        "evaluations",
        sa.Column("id", Serial, nullable=False),
        *required(sa.Text(), "model"),
        *required(sa.BigInteger(), "number"),
        *required(sa.Text(), "job", "set_digest", "scorer_digest", "state"),
        *required(sa.BigInteger(), "began_at"),
        *optional(sa.BigInteger(), "ended_at"),
        *required(sa.Text(), "error"),
        sa.CheckConstraint("(state = 'open') = (ended_at IS NULL)", name=op.f("ck_evaluations_ended_at")),
        sa.CheckConstraint("state IN ('open', 'scored', 'failed')", name=op.f("ck_evaluations_state")),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_evaluations_job")),
        of_version("evaluations"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluations")),
        sa.UniqueConstraint("job", name=op.f("uq_evaluations_job")),
    )
    op.create_index("uq_evaluations_open", "evaluations", ["model", "number"], unique=True, **rows("state = 'open'"))
    op.create_table(
        "verdicts",
        sa.Column("id", Serial, nullable=False),
        *required(sa.Text(), "model"),
        *required(sa.BigInteger(), "number", "evaluation"),
        *required(sa.Text(), "gates_digest", "set_digest", "verdict", "evidence"),
        *required(sa.BigInteger(), "at"),
        sa.CheckConstraint("verdict IN ('accepted', 'rejected', 'inconclusive')", name=op.f("ck_verdicts_verdict")),
        sa.ForeignKeyConstraint(["evaluation"], ["evaluations.id"], name=op.f("fk_verdicts_evaluation")),
        of_version("verdicts"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_verdicts")),
        sa.UniqueConstraint(
            *("model", "number", "gates_digest", "set_digest"),
            name=op.f("uq_verdicts_model_number_gates_digest_set_digest"),
        ),
    )
    op.create_index("ix_verdicts_set_digest", "verdicts", ["set_digest"])
    op.create_table(
        "overrules",
        sa.Column("id", Serial, nullable=False),
        *required(sa.Text(), "model"),
        *required(sa.BigInteger(), "number"),
        *required(sa.Text(), "was", "verdict", "by", "why"),
        *required(sa.BigInteger(), "at"),
        sa.CheckConstraint("verdict IN ('accepted', 'rejected')", name=op.f("ck_overrules_verdict")),
        of_version("overrules"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_overrules")),
    )


def make_use() -> None:
    """Which version is in force, and where which one is deployed."""
    op.create_table(
        "promotions",
        sa.Column("id", Serial, nullable=False),
        *required(sa.Text(), "model", "kind"),
        *optional(sa.BigInteger(), "number", "was"),
        *required(sa.Text(), "by", "why"),
        *required(sa.BigInteger(), "at"),
        sa.CheckConstraint("kind IN ('promote', 'rollback')", name=op.f("ck_promotions_kind")),
        sa.ForeignKeyConstraint(["model"], ["models.name"], name=op.f("fk_promotions_model")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_promotions")),
    )
    op.create_index("ix_promotions_model_id", "promotions", ["model", "id"])
    op.create_table(
        "deployments",
        sa.Column("id", Serial, nullable=False),
        *required(sa.Text(), "model"),
        *required(sa.BigInteger(), "number"),
        *required(sa.Text(), "target", "state", "by", "why", "evidence"),
        *required(sa.BigInteger(), "intended_at"),
        *optional(sa.BigInteger(), "served_at", "ended_at"),
        sa.CheckConstraint(
            "(state IN ('intended', 'serving')) = (ended_at IS NULL)", name=op.f("ck_deployments_ended_at")
        ),
        sa.CheckConstraint(
            "state NOT IN ('serving', 'replaced') OR served_at IS NOT NULL", name=op.f("ck_deployments_served_at")
        ),
        sa.CheckConstraint(
            "state IN ('intended', 'serving', 'returned', 'failed', 'replaced')", name=op.f("ck_deployments_state")
        ),
        of_version("deployments"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deployments")),
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
