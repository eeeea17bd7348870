"""What a training's steps took, beside their losses."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

FIGURES = ("tokens_per_second", "step_seconds_p90", "padding", "gradient_norm", "gpu_memory_bytes")


def upgrade() -> None:
    """Older points have none of it."""
    for name in FIGURES:
        op.add_column("series", sa.Column(name, sa.Float(), nullable=True))
