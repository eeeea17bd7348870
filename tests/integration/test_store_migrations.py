"""A migrated database and a new one are the same, and are what the code declares."""

import os
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


def test_each_step_of_migration_makes_a_revision_of_the_schema_in_their_order() -> None:
    assert set(STEPS) < set(REVISIONS[1:])
    assert list(STEPS) == sorted(STEPS)


@pytest.mark.parametrize("first", [False, True], ids=["new", "migrated"])
def test_alembic_finds_no_difference_between_database_and_tables(database_url: str, *, first: bool) -> None:
    make(database_url, first=first)
    database = open_database(database_url)
    with closing(database), database.read() as tx:
        context = MigrationContext.configure(tx, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, complete()) == []


def make(url: str, *, first: bool) -> None:
    """Make a database of the newest schema, with ``first`` from one of the first release."""
    if first:
        database = Database(url)
        with closing(database), database.write() as tx:
            make_first_schema(tx)
    assert upgrade(url) == ("0001" if first else None, REVISIONS[-1])


@pytest.mark.postgres
def test_postgresql_tables_are_the_same(postgresql: str) -> None:
    """As the SQLite files of old releases are compared, by the constraints and indexes the server itself describes."""
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
