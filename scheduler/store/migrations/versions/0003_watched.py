"""Runs that were settled without the platform's word, so that what it shows of them later is booked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from scheduler.store.columns import key, optional, required

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "watched",
        *key(sa.Text(), "run"),
        *required(sa.BigInteger(), "until"),
        *optional(sa.BigInteger(), "booked_start", "booked_end"),
        sa.CheckConstraint("(booked_start IS NULL) = (booked_end IS NULL)", name="booked"),
        sa.ForeignKeyConstraint(["run"], ["runs.key"]),
    )
