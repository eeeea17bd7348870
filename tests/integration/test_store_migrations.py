"""A migrated database and a new one are the same, and are what the code declares."""

import os
import re
import subprocess
import sys
from contextlib import closing
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
from tests.lab.first_schema import make_first_schema


def test_the_revisions_named_in_the_schema_are_those_of_the_migrations() -> None:
    assert len(STEPS) == len(REVISIONS) - 1
    assert len(set(STEPS)) == len(STEPS)


@pytest.mark.parametrize("first", [False, True], ids=["new", "migrated"])
def test_alembic_finds_no_difference_between_database_and_tables(database_url: str, *, first: bool) -> None:
    make(database_url, first=first)
    database = open_database(database_url)
    with closing(database), database.read() as tx:
        context = MigrationContext.configure(tx, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, complete()) == []


def test_sqlite_tables_are_word_for_word_the_same(tmp_path: Path) -> None:
    """Alembic does not compare checks, triggers and the conditions of partial indexes; the statements hold them."""
    migrated, new = (f"sqlite:///{tmp_path / name}.db" for name in ("migrated", "new"))
    make(migrated, first=True)
    make(new, first=False)
    assert statements(migrated) == statements(new)


def make(url: str, *, first: bool) -> None:
    """Make a database of the newest schema, with ``first`` from one of the first release."""
    if first:
        database = Database(url)
        with closing(database), database.write() as tx:
            make_first_schema(tx)
    assert upgrade(url) == ("0001" if first else None, REVISIONS[-1])


def statements(url: str) -> set[str]:
    database = Database(url)
    query = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'alembic%'"
    with database.read() as tx:
        found = {statement for (statement,) in tx.execute(text(query))}
    database.close()
    # The order of constraints inside a table has no meaning, and a column that was added later has no line of its own.
    return {"\n".join(sorted(re.split(r",?\s*\n\s*|, (?=\w+ [A-Z]+,)", statement))) for statement in found}


@pytest.mark.postgres
def test_postgresql_tables_are_the_same(postgresql: str) -> None:
    """As above, by the constraints and indexes the server itself describes."""
    described = []
    for name in ("migrated", "new"):
        url = make_url(postgresql).set(database=f"{name}_{os.getpid()}")
        admin = Database(postgresql)
        with admin._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(f'CREATE DATABASE "{url.database}"'))
        admin.close()
        make(url.render_as_string(), first=name == "migrated")
        database = Database(url.render_as_string())
        with database.read() as tx:
            described.append(
                {
                    tuple(row)
                    for query in (
                        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid <> 0",
                        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
                        "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
                        "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
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
