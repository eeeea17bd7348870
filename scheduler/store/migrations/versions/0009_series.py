"""What sessions told of a job's training over its steps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Begin with nothing: older versions kept the newest word of a session alone."""
    op.create_table(
        "series",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("loss", sa.Float(), nullable=True),
        sa.Column("held_out_loss", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_series_job")),
        sa.PrimaryKeyConstraint("job", "attempt", "step", name=op.f("pk_series")),
    )
