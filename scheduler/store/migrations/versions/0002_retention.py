"""What retention is about to delete, how far events were pruned, and no way round the append-only tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from scheduler.store.columns import key, one_of, required

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make both tables and replace the triggers."""
    op.create_table(
        "discards",
        *key(sa.Text(), "key"),
        *required(sa.Text(), "job", "why"),
        *required(sa.BigInteger(), "marked_at", "delete_at"),
        sa.CheckConstraint("delete_at >= marked_at", name="grace"),
        sa.ForeignKeyConstraint(["job"], ["jobs.name"]),
    )
    op.create_index("ix_discards_job", "discards", ["job"])
    op.create_table("pruned", *key(sa.Text(), "name"), *required(sa.BigInteger(), "up_to"), one_of("name", "events"))
    op.execute("INSERT INTO pruned (name, up_to) VALUES ('events', 0)")
    if op.get_context().dialect.name == "sqlite":
        guard_sqlite()
    else:
        guard_postgresql()


def guard_sqlite() -> None:
    """Old events may go. INSERT OR REPLACE deletes without firing a trigger for it, so it is refused before it does."""
    op.execute("DROP TRIGGER events_no_delete")
    op.execute(
        "CREATE TRIGGER events_no_delete BEFORE DELETE ON events "
        "WHEN OLD.id > coalesce((SELECT up_to FROM pruned WHERE name = 'events'), 0) "
        "BEGIN SELECT RAISE(ABORT, 'events is append-only'); END"
    )
    clashes = {
        "events": "SELECT 1 FROM events WHERE id = NEW.id",
        "ledger": (
            "SELECT 1 FROM ledger WHERE id = NEW.id OR (run = NEW.run AND (kind = 'hold' AND NEW.kind = 'hold' "
            "OR kind IN ('spend', 'release') AND NEW.kind IN ('spend', 'release')))"
        ),
    }
    for table, clash in clashes.items():
        op.execute(
            f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} WHEN EXISTS ({clash}) "
            f"BEGIN SELECT RAISE(ABORT, '{table} is append-only: there is such a row already'); END"
        )


def guard_postgresql() -> None:
    """Old events may go."""
    op.execute("DROP TRIGGER events_append_only ON events")
    op.execute(
        "CREATE TRIGGER events_append_only BEFORE UPDATE OR TRUNCATE ON events "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )
    op.execute(
        "CREATE FUNCTION refuse_early_delete() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF OLD.id > coalesce((SELECT up_to FROM pruned WHERE name = TG_TABLE_NAME), 0) THEN "
        "RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation'; "
        "END IF; RETURN OLD; END $$"
    )
    op.execute(
        "CREATE TRIGGER events_no_early_delete BEFORE DELETE ON events "
        "FOR EACH ROW EXECUTE FUNCTION refuse_early_delete()"
    )
