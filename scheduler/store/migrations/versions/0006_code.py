"""Jobs that bring their own code: which one a lane ran, and what of the store nobody needs any more."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what is empty for every job and lane so far."""
    op.add_column("lanes", sa.Column("code", sa.Text(), nullable=True))
    op.create_table(
        "codes",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("delete_at", sa.BigInteger(), nullable=True),
        sa.Column("going", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_codes")),
    )
