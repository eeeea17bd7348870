"""Trees of several kinds in the artifact store, where there was code alone, and which of them a lane is given."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Keep every code as a tree of that kind."""
    op.add_column("lanes", sa.Column("trees", sa.Text(), nullable=True))
    op.create_table(
        "trees",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("delete_at", sa.BigInteger(), nullable=True),
        sa.Column("going", sa.Boolean(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_trees")),
    )
    op.execute("INSERT INTO trees (digest, delete_at, going, kind) SELECT digest, delete_at, going, 'code' FROM codes")
    op.drop_table("codes")
