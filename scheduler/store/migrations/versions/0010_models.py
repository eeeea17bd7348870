"""Models: versions, how they were judged, which one is in force, and where which one is deployed."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# SQLite numbers rows by itself only in a column whose type is exactly INTEGER.
SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Begin with nothing: before, a job's end was all that was known of its model."""
    make_versions()
    make_judgement()
    make_use()
    keep_verdicts()


def text(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    """A column of text."""
    return sa.Column(name, sa.Text(), nullable=nullable)


def whole(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    """A column of whole numbers."""
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def of_version(table: str) -> sa.ForeignKeyConstraint:
    """What a row of ``table`` is about is a version."""
    name = op.f(f"fk_{table}_model_number")
    return sa.ForeignKeyConstraint(["model", "number"], ["model_versions.model", "model_versions.number"], name=name)


def only(condition: str) -> dict[str, Any]:
    """The rows of a partial index, for both databases."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def make_versions() -> None:
    """Versions and their numbers."""
    op.create_table(
        "models",
        text("name"),
        whole("counter"),
        sa.ForeignKeyConstraint(["name"], ["jobs.name"], name=op.f("fk_models_name")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_models")),
    )
    op.create_table(
        "model_versions",
        text("model"),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        text("checkpoint"),
        text("digest"),
        whole("step"),
        *(text(name, nullable=True) for name in ("code", "environment", "corpus", "mixture", "parent")),
        whole("parent_number", nullable=True),
        text("parent_key", nullable=True),
        text("state"),
        text("why"),
        whole("created_at"),
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
        sa.Column("id", SERIAL, nullable=False),
        text("model"),
        whole("number"),
        text("job"),
        text("set_digest"),
        text("scorer_digest"),
        text("state"),
        whole("began_at"),
        whole("ended_at", nullable=True),
        text("error"),
        sa.CheckConstraint("(state = 'open') = (ended_at IS NULL)", name=op.f("ck_evaluations_ended_at")),
        sa.CheckConstraint("state IN ('open', 'scored', 'failed')", name=op.f("ck_evaluations_state")),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_evaluations_job")),
        of_version("evaluations"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluations")),
        sa.UniqueConstraint("job", name=op.f("uq_evaluations_job")),
    )
    op.create_index("uq_evaluations_open", "evaluations", ["model", "number"], unique=True, **only("state = 'open'"))
    op.create_table(
        "verdicts",
        sa.Column("id", SERIAL, nullable=False),
        text("model"),
        whole("number"),
        whole("evaluation"),
        text("gates_digest"),
        text("set_digest"),
        text("verdict"),
        text("evidence"),
        whole("at"),
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
        sa.Column("id", SERIAL, nullable=False),
        text("model"),
        whole("number"),
        text("was"),
        text("verdict"),
        text("by"),
        text("why"),
        whole("at"),
        sa.CheckConstraint("verdict IN ('accepted', 'rejected')", name=op.f("ck_overrules_verdict")),
        of_version("overrules"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_overrules")),
    )


def make_use() -> None:
    """Which version is in force, and where which one is deployed."""
    op.create_table(
        "promotions",
        sa.Column("id", SERIAL, nullable=False),
        text("model"),
        text("kind"),
        whole("number", nullable=True),
        whole("was", nullable=True),
        text("by"),
        text("why"),
        whole("at"),
        sa.CheckConstraint("kind IN ('promote', 'rollback')", name=op.f("ck_promotions_kind")),
        sa.ForeignKeyConstraint(["model"], ["models.name"], name=op.f("fk_promotions_model")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_promotions")),
    )
    op.create_index("ix_promotions_model_id", "promotions", ["model", "id"])
    op.create_table(
        "deployments",
        sa.Column("id", SERIAL, nullable=False),
        text("model"),
        whole("number"),
        text("target"),
        text("state"),
        text("by"),
        text("why"),
        text("evidence"),
        whole("intended_at"),
        whole("served_at", nullable=True),
        whole("ended_at", nullable=True),
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
        name, rows = f"uq_deployments_{state}", only(f"state = '{state}'")
        op.create_index(name, "deployments", ["model", "target"], unique=True, **rows)


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
