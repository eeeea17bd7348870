"""Jobs that bring their own code: which one a lane ran, and what of the store is no longer needed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from scheduler.store.columns import key, optional, required

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add what is empty for every job and lane so far."""
    op.add_column("lanes", sa.Column("code", sa.Text(), nullable=True))
    op.create_table(
        "codes", *key(sa.Text(), "digest"), *optional(sa.BigInteger(), "delete_at"), *required(sa.Boolean(), "going")
    )
