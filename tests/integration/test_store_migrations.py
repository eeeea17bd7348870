"""The migrations make exactly the tables that the code believes in."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text
from sqlalchemy.engine import make_url

from scheduler.store.engine import Database, open_database, upgrade
from scheduler.store.migrations import STEPS
from scheduler.store.schema import REVISIONS, complete
from scheduler.store.verify import verify


def test_the_revisions_named_in_the_schema_are_those_of_the_migrations() -> None:
    assert len(STEPS) == len(REVISIONS)
    assert len(set(STEPS)) == len(STEPS)


def test_alembic_finds_no_difference_between_migrations_and_tables(database: Database) -> None:
    with database.read() as tx:
        context = MigrationContext.configure(tx, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, complete()) == []


def test_sqlite_tables_are_word_for_word_the_same(tmp_path: Path) -> None:
    """Alembic does not compare checks and the conditions of partial indexes; the statements hold everything."""
    migrated = f"sqlite:///{tmp_path / 'migrated.db'}"
    upgrade(migrated)
    made = Database(f"sqlite:///{tmp_path / 'made.db'}")
    with made.write() as tx:
        complete().create_all(tx)
    made.close()
    assert statements(migrated) == statements(str(made.url))


def statements(url: str) -> set[str]:
    database = Database(url)
    query = "SELECT sql FROM sqlite_master WHERE type <> 'trigger' AND sql IS NOT NULL AND name NOT LIKE 'alembic%'"
    with database.read() as tx:
        found = {statement for (statement,) in tx.execute(text(query))}
    database.close()
    # The order of constraints inside a table has no meaning, and a column that was added later has no line of its own.
    return {"\n".join(sorted(re.split(r",?\s*\n\s*|, (?=\w+ [A-Z]+,)", statement))) for statement in found}


@pytest.mark.postgres
def test_postgresql_tables_are_the_same(postgresql: str) -> None:
    """As above, by the constraints and indexes the server itself describes."""
    described = []
    for make in ("migrated", "made"):
        url = make_url(postgresql).set(database=f"{make}_{os.getpid()}")
        admin = Database(postgresql)
        with admin._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(f'CREATE DATABASE "{url.database}"'))
        admin.close()
        database = Database(url.render_as_string())
        if make == "migrated":
            upgrade(url.render_as_string())
        else:
            with database.write() as tx:
                complete().create_all(tx)
        with database.read() as tx:
            described.append(
                {
                    tuple(row)
                    for query in (
                        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid <> 0",
                        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
                        (
                            "SELECT table_name || '.' || column_name, data_type || is_nullable || "
                            "coalesce(column_default, '') FROM information_schema.columns WHERE table_schema = 'public'"
                        ),
                    )
                    for row in tx.execute(text(query))
                    if "alembic" not in row[0]
                }
            )
        database.close()
    assert described[0] == described[1]


def test_upgrading_tells_from_where_to_where_and_twice_does_nothing(database_url: str) -> None:
    assert upgrade(database_url) == (None, REVISIONS[-1])
    assert upgrade(database_url) == (REVISIONS[-1], REVISIONS[-1])
    database = open_database(database_url)
    assert verify(database) == []
    database.close()


def test_reading_jobs_loads_neither_alembic_nor_the_mapper_nor_a_server_driver(tmp_path: Path) -> None:
    upgrade(f"sqlite:///{tmp_path / 'scheduler.db'}")
    program = (
        "import sys\n"
        "from scheduler.store import jobs\n"
        "from scheduler.store.engine import open_database\n"
        "with open_database(sys.argv[1]).read() as tx:\n"
        "    assert jobs.everything(tx) == []\n"
        "heavy = {'alembic', 'mako', 'psycopg', 'sqlalchemy.orm', 'sqlalchemy.dialects.postgresql'}\n"
        "print(sorted(heavy.intersection(sys.modules)))\n"
    )
    command = [sys.executable, "-c", program, f"sqlite:///{tmp_path / 'scheduler.db'}"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "[]\n"
