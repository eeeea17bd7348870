"""When a lane continued in a session that ran already."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Older lanes began with their sessions."""
    op.add_column("lanes", sa.Column("begun_at", sa.BigInteger(), nullable=True))
