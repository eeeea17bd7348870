"""Jobs that were removed: their names are free, their history stays, and their attempts are never repeated."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add what is empty for every job so far."""
    op.add_column("jobs", sa.Column("removed_at", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("fenced_attempt", sa.BigInteger(), nullable=True))
