"""How long sessions wait for their start, and how far set-ups and checkpoints are from what was expected."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from scheduler.store.columns import key, required

revision = "0004"
down_revision = "0003"

# What was measured before gets what is assumed of a job that was never seen: no wait, and spreads of three tenths.
_KEPT = "job, pool, steps_per_second, sigma, samples, setup_seconds, checkpoint_seconds, at"


def upgrade() -> None:
    """Make the table again: SQLite adds no column that must have a value, unless it has a default for ever."""
    op.execute("CREATE TABLE rates_before AS SELECT * FROM rates")
    op.drop_table("rates")
    op.create_table(
        "rates",
        *key(sa.Text(), "job", "pool"),
        *required(sa.Float(), "steps_per_second", "sigma"),
        *required(sa.BigInteger(), "samples", "setup_seconds", "checkpoint_seconds", "at", "delay_seconds"),
        *required(sa.Float(), "setup_sigma", "checkpoint_sigma"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"]),
    )
    op.execute(
        f"INSERT INTO rates ({_KEPT}, delay_seconds, setup_sigma, checkpoint_sigma) "  # noqa: S608 - our own words
        f"SELECT {_KEPT}, 0, 0.3, 0.3 FROM rates_before"
    )
    op.drop_table("rates_before")
