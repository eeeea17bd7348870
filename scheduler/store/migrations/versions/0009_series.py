"""What sessions report about a job's training over its steps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from scheduler.store.columns import key, optional, required

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Begin with nothing: older versions kept the newest word of a session alone."""
    op.create_table(
        "series",
        *key(sa.Text(), "job"),
        *key(sa.BigInteger(), "attempt", "step"),
        *required(sa.BigInteger(), "at"),
        *optional(sa.Float(), "loss", "held_out_loss"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"]),
    )
