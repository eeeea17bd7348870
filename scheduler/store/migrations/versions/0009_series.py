"""What sessions told of a job's training over its steps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from scheduler.store.columns import optional, required

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Begin with nothing: older versions kept the newest word of a session alone."""
    op.create_table(
        "series",
        *required(sa.Text(), "job"),
        sa.Column("attempt", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        *required(sa.BigInteger(), "at"),
        *optional(sa.Float(), "loss", "held_out_loss"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"], name=op.f("fk_series_job")),
        sa.PrimaryKeyConstraint("job", "attempt", "step", name=op.f("pk_series")),
    )
