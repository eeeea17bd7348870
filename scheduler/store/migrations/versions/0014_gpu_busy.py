"""How busy the GPUs of a session are, beside its losses."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Older points have none."""
    op.add_column("series", sa.Column("gpu_busy", sa.Float(), nullable=True))
