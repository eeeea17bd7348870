"""Runs that were settled without the platform's word, so that what it shows of them later is booked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "watched",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.Column("booked_start", sa.BigInteger(), nullable=True),
        sa.Column("booked_end", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("(booked_start IS NULL) = (booked_end IS NULL)", name=op.f("ck_watched_booked")),
        sa.ForeignKeyConstraint(["run"], ["runs.key"], name=op.f("fk_watched_run")),
        sa.PrimaryKeyConstraint("run", name=op.f("pk_watched")),
    )
