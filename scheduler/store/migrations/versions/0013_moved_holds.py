"""Moved holds: what a session that waits in its platform's queue holds moves on with it, by further entries."""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Let a run have more than one hold: the newest counts. Settlements stay unique."""
    op.drop_index("uq_ledger_run_hold", table_name="ledger")
    if op.get_context().dialect.name == "sqlite":
        op.execute("DROP TRIGGER ledger_no_replace")
        op.execute(
            "CREATE TRIGGER ledger_no_replace BEFORE INSERT ON ledger WHEN EXISTS (SELECT 1 FROM ledger WHERE "
            "id = NEW.id OR (run = NEW.run AND kind IN ('spend', 'release') AND NEW.kind IN ('spend', 'release'))) "
            "BEGIN SELECT RAISE(ABORT, 'ledger is append-only: there is such a row already'); END"
        )
