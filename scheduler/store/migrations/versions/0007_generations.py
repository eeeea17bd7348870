"""Jobs that start from another's weights, or begin anew: which generation of a job started from which checkpoint."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what is empty for every job so far."""
    op.create_table(
        "generations",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("first_attempt", sa.BigInteger(), nullable=False),
        sa.Column("began_at", sa.BigInteger(), nullable=False),
        sa.Column("parent", sa.Text(), nullable=True),
        sa.Column("parent_step", sa.BigInteger(), nullable=True),
        sa.Column("parent_key", sa.Text(), nullable=True),
        sa.Column("refused", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_generations_job")),
        sa.PrimaryKeyConstraint("job", "number", name=op.f("pk_generations")),
    )
