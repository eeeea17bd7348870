"""A database of every release that ever was upgrades to this one, and nothing in it is lost on the way.

``old_databases/make.py`` made the files, each with the code of its release.
"""

import gzip
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jobs.spec import JobSpec, Mixture
from scheduler.core.run import Ended, Outcome, Reserved
from scheduler.store import checkpoints, events, jobs, ledger, listing, outbox, plans, runs
from scheduler.store.engine import open_database, upgrade
from scheduler.store.errors import StoreFailure
from scheduler.store.schema import REVISIONS
from scheduler.store.verify import verify

KEPT = sorted((Path(__file__).parent / "old_databases").glob("*.db.gz"))
NOW = 1_795_100_000
RENAMED = {"codes": "trees"}


@pytest.fixture(params=KEPT, ids=[path.name.partition(".")[0] for path in KEPT])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the database that a release left."""
    path = tmp_path / "scheduler.db"
    path.write_bytes(gzip.decompress(request.param.read_bytes()))
    return path


def rows_of(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(path)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        names = [name for name in names if name != "alembic_version"]
        return {name: connection.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall() for name in names}  # noqa: S608 - its own names


def test_every_release_that_changed_the_schema_left_a_database() -> None:
    kept = {path.name.partition(".")[0] for path in KEPT}
    assert kept == set(REVISIONS[:-1])


def test_it_is_not_opened_before_it_is_upgraded(old: Path) -> None:
    before = rows_of(old)
    with pytest.raises(StoreFailure, match="schedctl db upgrade"):
        open_database(f"sqlite:///{old}")
    assert rows_of(old) == before


def test_it_upgrades_and_keeps_every_row(old: Path) -> None:
    url, before = f"sqlite:///{old}", rows_of(old)
    found = open_revision(old)
    assert upgrade(url) == (found, REVISIONS[-1])
    after = rows_of(old)
    before = {RENAMED.get(table, table): rows for table, rows in before.items()}
    for table, rows in before.items():
        assert [row[: len(rows[0])] for row in after[table]] == rows if rows else after[table] == [], table
    database = open_database(url)
    assert verify(database) == []
    database.close()


def test_its_tables_are_those_of_a_new_database(old: Path, tmp_path: Path) -> None:
    """Alembic does not compare checks, triggers and the conditions of partial indexes; the statements hold them."""
    new = tmp_path / "new.db"
    upgrade(f"sqlite:///{old}")
    upgrade(f"sqlite:///{new}")
    assert statements_of(old) == statements_of(new)


def test_it_works_after_the_upgrade(old: Path) -> None:
    """Everything in it is read by the code of today, and the next write goes on from there."""
    url = f"sqlite:///{old}"
    found, _ = upgrade(url)
    assert [(job.name, job.done_step) for job in listing.list_jobs(url)] == [("ufm", 40), ("ucm", 0)]
    database = open_database(url)
    with database.read() as tx:
        ended, live = runs.get(tx, "uff-ufm-0001"), runs.get(tx, "uff-ucm-0001")
        assert isinstance(ended.state, Ended)
        assert ended.state.outcome == Outcome.YIELDED
        assert isinstance(live.state, Reserved)
        assert [record.manifest.step for record in checkpoints.newest(tx, "ufm")] == [40]
        assert plans.newest(tx) is not None
        with_corpus = found is not None and found < "0008"  # since then only a job that asks for it gets it
        assert {job.spec.mixture for job in jobs.everything(tx)} == {Mixture() if with_corpus else None}
        assert [charge.held for charge in ledger.charges(tx, 0)["kaggle"]] == [False, True]
        assert [message.period for message in outbox.pending(tx, NOW)] == ["2026-W46"]
        assert events.newest_id(tx) > 0
    with database.write() as tx:
        jobs.add(tx, JobSpec("uam", "manager", ("train",), target_step=100, steps_per_hour=10.0), NOW)
        assert jobs.note_launch(tx, "ufm", "desk") == 2
    assert verify(database) == []
    database.close()


def statements_of(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'alembic%'"
        statements = [statement for (statement,) in connection.execute(query)]
    # The order of constraints has no meaning, and a column that was added later has no line of its own.
    return {"\n".join(sorted(re.split(r",?\s*\n\s*|, (?=\w+ [A-Z]+,)", one))) for one in statements}


def open_revision(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])
