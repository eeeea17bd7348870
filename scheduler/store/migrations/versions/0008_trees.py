"""Trees of several kinds in the artifact store, where there was code alone, and which of them a lane is given."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from scheduler.store.columns import key, optional, required

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Keep every code as a tree of that kind."""
    op.add_column("lanes", sa.Column("trees", sa.Text(), nullable=True))
    op.create_table(
        "trees",
        *key(sa.Text(), "digest"),
        *optional(sa.BigInteger(), "delete_at"),
        *required(sa.Boolean(), "going"),
        *required(sa.Text(), "kind"),
        *optional(sa.Text(), "origin"),
    )
    op.execute("INSERT INTO trees (digest, delete_at, going, kind) SELECT digest, delete_at, going, 'code' FROM codes")
    op.drop_table("codes")
