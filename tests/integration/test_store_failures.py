"""Each way a database can fail has a class of its own, says where and why, and names a remedy."""

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from jobs.spec import JobSpec
from scheduler.store import events, jobs
from scheduler.store.engine import Database, open_database, upgrade
from scheduler.store.errors import (
    DatabaseBusy,
    DatabaseCorrupt,
    StoreFailure,
)
from scheduler.store.schema import REVISIONS, metadata
from scheduler.store.verify import verify
from tests.lab.disk import make_read_only, small_disk

NOW = 1_795_000_000
SPEC = JobSpec(name="ufm", role="manager", command=("train",), target_step=100, steps_per_hour=10.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A SQLite database with one job, closed, so that the file is all there is."""
    found = tmp_path / "scheduler.db"
    fill(found)
    return found


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one mebibyte."""
    with small_disk(tmp_path / "disk", "1m") as folder:
        yield folder


def fill(path: Path) -> None:
    database = open_database(url_of(path), create=True)
    with database.write() as tx:
        jobs.add(tx, SPEC, NOW)
    database.close()


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def told(failure: StoreFailure, *words: str) -> None:
    """The message must hold what failed, where, why and the remedy."""
    message = str(failure)
    for part in (failure.what, failure.where, failure.why, failure.remedy, *words):
        assert part, failure
        assert part in message


def flip_page_of(path: Path, table: str) -> None:
    """Overwrite the page at which a table's tree begins, as a bad disk would."""
    connection = sqlite3.connect(path)
    (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    data = bytearray(path.read_bytes())
    first = (page - 1) * size
    data[first : first + 64] = bytes(byte ^ 0xFF for byte in data[first : first + 64])
    path.write_bytes(data)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(StoreFailure, match="no database") as caught:
        open_database(url_of(tmp_path / "none.db"))
    told(caught.value, "none.db", "schedctl init")
    assert not (tmp_path / "none.db").exists()


def test_an_empty_file_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with pytest.raises(StoreFailure, match="no database"):
        open_database(url_of(tmp_path / "empty.db"))
    open_database(url_of(tmp_path / "empty.db"), create=True).close()


def test_a_missing_folder_is_made_with_the_database(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "scheduler.db"
    database = open_database(url_of(path), create=True)
    assert database.path == path
    database.close()


@pytest.mark.postgres
def test_a_missing_postgresql_database(postgresql: str) -> None:
    url = make_url(postgresql).set(database="nowhere").render_as_string()
    with pytest.raises(StoreFailure, match="no database") as caught:
        open_database(url)
    told(caught.value, "nowhere", "createdb")


@pytest.mark.postgres
def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    url = f"postgresql+psycopg://ann:s3cret@/scheduler?host={tmp_path}"
    with pytest.raises(StoreFailure, match="database server cannot be used") as caught:
        open_database(url)
    told(caught.value, str(tmp_path))
    assert "s3cret" not in str(caught.value)


@pytest.mark.postgres
def test_a_connection_that_breaks_and_comes_back(postgresql: str) -> None:
    database = Database(postgresql)
    with (
        pytest.raises(StoreFailure, match="database server cannot be used"),
        database.write() as tx,
    ):
        tx.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
    with database.read() as tx:
        assert tx.execute(text("SELECT 1")).scalar() == 1
    database.close()


def test_a_schema_of_an_older_version(database_url: str) -> None:
    upgrade(database_url)
    database = Database(database_url)
    with database.write() as tx:
        tx.execute(text("DELETE FROM alembic_version"))
        for table in reversed(metadata.sorted_tables):
            tx.execute(text(f"DROP TABLE {table.name}"))
    database.close()
    with pytest.raises(StoreFailure, match="database is older") as caught:
        open_database(database_url)
    told(caught.value, "schedctl db upgrade")
    assert f"has no revision, this version needs {REVISIONS[-1]}" in caught.value.why


@pytest.mark.parametrize("damage", ["ALTER TABLE jobs RENAME TO lost", "ALTER TABLE jobs RENAME COLUMN name TO lost"])
def test_a_schema_without_what_its_version_has_is_damaged(database: Database, damage: str) -> None:
    with database.write() as tx:
        tx.execute(text(damage))
    with pytest.raises(DatabaseCorrupt, match="database is damaged"), database.read() as tx:
        tx.execute(text("SELECT name FROM jobs"))


def test_a_schema_of_a_newer_version(database: Database, database_url: str) -> None:
    with database.write() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreFailure, match="database is newer") as caught:
        open_database(database_url)
    told(caught.value, "9999", "newer version")
    with pytest.raises(StoreFailure, match="database is newer"):
        upgrade(database_url)


def test_somebody_elses_database(database_url: str) -> None:
    database = Database(database_url)
    with database.write() as tx:
        tx.execute(text("CREATE TABLE bills (id INTEGER)"))
    database.close()
    with pytest.raises(DatabaseCorrupt) as caught:
        open_database(database_url, create=True)
    told(caught.value, "bills")
    with pytest.raises(DatabaseCorrupt):
        upgrade(database_url)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary, " * 1_000)
    for act in (open_database, upgrade):
        with pytest.raises(DatabaseCorrupt) as caught:
            act(url_of(path))
        told(caught.value, "restore")
    assert path.read_text().startswith("dear diary")


def test_a_flipped_page(path: Path) -> None:
    flip_page_of(path, "jobs")
    database = open_database(url_of(path))
    with pytest.raises(DatabaseCorrupt) as caught, database.read() as tx:
        jobs.everything(tx)
    told(caught.value, "restore")
    assert any("damaged" in problem for problem in verify(database))
    database.close()


def test_a_flipped_first_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100:200] = bytes(byte ^ 0xFF for byte in data[100:200])
    path.write_bytes(data)
    with pytest.raises(DatabaseCorrupt):
        open_database(url_of(path))


def test_a_file_cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(DatabaseCorrupt):
        open_database(url_of(path))


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "folder.db" / "inside").mkdir(parents=True)
    with pytest.raises(StoreFailure, match="database cannot be opened") as caught:
        open_database(url_of(tmp_path / "folder.db"))
    told(caught.value)


def test_a_read_only_disk(tiny_disk: Path) -> None:
    fill(tiny_disk / "scheduler.db")
    make_read_only(tiny_disk)
    database = open_database(url_of(tiny_disk / "scheduler.db"))
    with database.read() as tx:
        assert jobs.everything(tx)
    with pytest.raises(StoreFailure, match="database is read-only") as caught, database.write() as tx:
        jobs.note_failures(tx, "ufm", 1)
    told(caught.value, "mounted")
    database.close()


def test_a_connection_that_may_only_read(path: Path) -> None:
    database = open_database(url_of(path))
    with database.read() as tx:
        tx.execute(text("PRAGMA query_only = ON"))
    with pytest.raises(StoreFailure, match="database is read-only"), database.write() as tx:
        jobs.note_failures(tx, "ufm", 1)
    database.close()


@pytest.mark.postgres
def test_a_read_only_server(postgresql: str) -> None:
    database = Database(postgresql)
    with pytest.raises(StoreFailure, match="database is read-only"), database.read() as tx:
        tx.execute(text("CREATE TABLE nothing (id INTEGER)"))
    database.close()


def test_a_full_disk_loses_nothing_and_work_goes_on(tiny_disk: Path) -> None:
    path = tiny_disk / "scheduler.db"
    fill(path)
    database = open_database(url_of(path))
    filler = tiny_disk / "filler"
    filler.write_bytes(b"x" * (shutil.disk_usage(tiny_disk).free - 50_000))
    written = 0

    def write_for_ever() -> None:
        nonlocal written
        while True:
            with database.write() as tx:
                events.append(tx, "note", "ufm", NOW, text="y" * 4_000)
            written += 1

    with pytest.raises(StoreFailure, match="disk full") as caught:
        write_for_ever()
    told(caught.value, "Make room")
    filler.unlink()
    with database.write() as tx:
        events.append(tx, "note", "ufm", NOW)
    with database.read() as tx:
        assert len(events.tail(tx, kinds=["note"])) == written + 1
    assert written > 0
    assert verify(database) == []
    database.close()


def test_a_writer_killed_at_any_moment_loses_nothing_it_was_told_is_safe(path: Path) -> None:
    program = (
        "import sys\n"
        "from scheduler.store import events\n"
        "from scheduler.store.engine import open_database\n"
        "database = open_database(sys.argv[1])\n"
        "while True:\n"
        "    with database.write() as tx:\n"
        "        number = events.append(tx, 'note', 'ufm', 0, text='x' * 2_000)\n"
        "    print(number, flush=True)\n"
    )
    command = [sys.executable, "-c", program, url_of(path)]
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            told_safe = [int(writer.stdout.readline()) for _ in range(20)]
            writer.kill()
            told_safe += [int(line) for line in writer.stdout if line.endswith("\n")]
        database = open_database(url_of(path))
        with database.read() as tx:
            kept = {event.id for event in events.tail(tx, limit=100_000, kinds=["note"])}
        assert kept >= set(told_safe)
        assert verify(database) == []
        database.close()


def hold_sqlite(url: str) -> Callable[[], None]:
    connection = sqlite3.connect(str(make_url(url).database), isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection.close


def hold_postgresql(url: str) -> Callable[[], None]:
    other = Database(url)
    transaction = other.write()
    transaction.__enter__()

    def let_go() -> None:
        transaction.__exit__(None, None, None)
        other.close()

    return let_go


def test_a_lock_that_another_program_keeps(database: Database, database_url: str) -> None:
    hold = hold_sqlite if database.path else hold_postgresql
    let_go = hold(database_url)
    impatient = Database(database_url, busy_seconds=0.05)
    with pytest.raises(DatabaseBusy) as caught, impatient.write():
        pytest.fail("two writers at a time")
    told(caught.value, "Try again")
    with impatient.read() as tx:
        assert jobs.everything(tx) == []
    let_go()
    with impatient.write() as tx:
        jobs.add(tx, SPEC, NOW)
    impatient.close()


@pytest.mark.parametrize("database_url", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)
def test_a_writer_that_hangs_keeps_a_server_from_nobody(database: Database, database_url: str) -> None:
    """A stopped process, as seen from here: it began to write and says no more. Its own write has failed."""
    hung = Database(database_url, silent_seconds=0.3)

    def write_while_one_hangs() -> None:
        with hung.write() as silent:
            jobs.add(silent, SPEC, NOW)
            with database.write() as tx:
                assert jobs.everything(tx) == []
                jobs.add(tx, SPEC, NOW)

    with pytest.raises(StoreFailure, match="database server cannot be used") as caught:
        write_while_one_hangs()
    told(caught.value, "idle-in-transaction")
    hung.close()
    with database.read() as tx:
        assert len(jobs.everything(tx)) == 1


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://root:s3cret@host/db", "sqlite://", "sqlite:///:memory:"])
def test_a_url_we_cannot_use(url: str) -> None:
    with pytest.raises(StoreFailure) as caught:
        Database(url)
    told(caught.value, "sqlite:////")
    assert "s3cret" not in str(caught.value)


def test_a_database_opened_to_be_read_refuses_writes_by_itself(database_url: str) -> None:
    upgrade(database_url)
    database = open_database(database_url, read_only=True)
    with pytest.raises(StoreFailure, match="read"), database.write() as tx:
        tx.execute(text("INSERT INTO due (name, at) VALUES ('report', 1)"))
    with database.read() as tx:
        assert tx.execute(text("SELECT count(*) FROM due")).scalar() == 0
    database.close()
