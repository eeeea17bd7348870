"""Jobs that start from another's weights, or from scratch: which generation of a job started from which checkpoint."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from scheduler.store.columns import key, optional, required

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add what is empty for every job so far."""
    op.create_table(
        "generations",
        *key(sa.Text(), "job"),
        *key(sa.BigInteger(), "number"),
        *required(sa.BigInteger(), "first_attempt", "began_at"),
        *optional(sa.Text(), "parent"),
        *optional(sa.BigInteger(), "parent_step"),
        *optional(sa.Text(), "parent_key"),
        *required(sa.Text(), "refused"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"]),
    )
