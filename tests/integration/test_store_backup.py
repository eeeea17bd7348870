"""Backups are consistent while others write, and nothing is replaced before the copy is found whole."""

import os
import shutil
import sqlite3
import subprocess
import threading
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from jobs.spec import JobSpec
from scheduler.store import events, jobs
from scheduler.store.backup import BackupFailed, backup, restore
from scheduler.store.engine import Database, open_database
from scheduler.store.errors import DatabaseBusy, DatabaseCorrupt, StoreFailure
from scheduler.store.schema import metadata
from scheduler.store.verify import verify
from tests.lab.patience import PATIENCE_SECONDS

NOW = 1_795_000_000


def spec(name: str) -> JobSpec:
    return JobSpec(name=name, role="manager", command=("train",), target_step=100, steps_per_hour=10.0)


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


def rows(database: Database) -> dict[str, list[tuple[object, ...]]]:
    with database.read() as tx:
        return {
            name: sorted((tuple(row) for row in tx.execute(table.select())), key=repr)
            for name, table in metadata.tables.items()
        }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A SQLite database with a few jobs, closed."""
    found = tmp_path / "scheduler.db"
    database = open_database(url_of(found), create=True)
    with database.write() as tx:
        for name in ("a", "b", "c"):
            jobs.add(tx, spec(name), NOW)
    database.close()
    return found


def test_a_restored_backup_holds_every_row(path: Path, tmp_path: Path) -> None:
    database = open_database(url_of(path))
    before = rows(database)
    backup(database, tmp_path / "backup.db")
    with database.write() as tx:
        jobs.add(tx, spec("later"), NOW)
    assert rows(database) != before
    database.close()
    restore(tmp_path / "backup.db", path)
    restored = open_database(url_of(path))
    after = rows(restored)
    assert after.pop("due") == [("look-back", 0)]
    assert before.pop("due") == []
    assert after == before
    assert verify(restored) == []
    restored.close()
    assert {found.name for found in tmp_path.iterdir()} <= {
        "scheduler.db",
        "scheduler.db-wal",
        "scheduler.db-shm",
        "backup.db",
    }


def test_a_backup_made_while_others_write_is_of_one_instant(path: Path, tmp_path: Path) -> None:
    stop, wrote = threading.Event(), threading.Event()
    failures: list[StoreFailure] = []

    def keep_writing() -> None:
        other = Database(url_of(path))
        number = 0
        while not stop.is_set():
            try:
                with other.write() as tx:
                    # Two rows that belong together: a backup must hold both or none.
                    events.append(tx, "left", f"pair-{number}", NOW, text="x" * 500)
                    events.append(tx, "right", f"pair-{number}", NOW, text="x" * 500)
            except StoreFailure as failure:
                failures.append(failure)
                return
            number += 1
            if number == 5:
                wrote.set()
        other.close()

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        assert wrote.wait(PATIENCE_SECONDS)
        database = open_database(url_of(path))
        for number in range(5):
            backup(database, tmp_path / f"backup-{number}.db")
        database.close()
    finally:
        stop.set()
        writer.join(PATIENCE_SECONDS)
    assert failures == []
    for number in range(5):
        copy = open_database(url_of(tmp_path / f"backup-{number}.db"))
        assert verify(copy) == []
        with copy.read() as tx:
            left = {event.subject for event in events.tail(tx, limit=100_000, kinds=["left"])}
            right = {event.subject for event in events.tail(tx, limit=100_000, kinds=["right"])}
        assert left == right
        assert len(left) >= 5
        copy.close()


def test_a_backup_is_one_plain_file_that_can_be_read_anywhere(path: Path, tmp_path: Path) -> None:
    database = open_database(url_of(path))
    folder = tmp_path / "backups"
    folder.mkdir()
    backup(database, folder / "one.db")
    backup(database, folder / "one.db")
    database.close()
    assert [found.name for found in folder.iterdir()] == ["one.db"]
    connection = sqlite3.connect(f"{(folder / 'one.db').as_uri()}?mode=ro&immutable=1", uri=True)
    assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (3,)
    connection.close()


def test_a_backup_into_no_folder_is_told(path: Path, tmp_path: Path) -> None:
    database = open_database(url_of(path))
    with pytest.raises(StoreFailure, match="nowhere"):
        backup(database, tmp_path / "nowhere" / "backup.db")
    database.close()


def test_a_damaged_backup_replaces_nothing(path: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.db"
    shutil.copy(path, bad)
    damage(bad)
    before = path.read_bytes()
    with pytest.raises((DatabaseCorrupt, BackupFailed), match="damaged"):
        restore(bad, path)
    (tmp_path / "text.db").write_text("not a database " * 100)
    with pytest.raises(DatabaseCorrupt):
        restore(tmp_path / "text.db", path)
    with pytest.raises(StoreFailure, match="no backup"):
        restore(tmp_path / "none.db", path)
    sqlite3.connect(tmp_path / "foreign.db").execute("CREATE TABLE bills (id)").connection.close()
    with pytest.raises(BackupFailed, match="not a database of ours"):
        restore(tmp_path / "foreign.db", path)
    assert path.read_bytes() == before


def damage(path: Path) -> None:
    """Write over the root page of the jobs' table, which a program meets only when it reads them."""
    with sqlite3.connect(path) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'jobs'").fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    with path.open("rb+") as stream:
        stream.seek((page - 1) * size)
        stream.write(b"\xff" * 16)


def test_a_damaged_database_makes_no_backup_and_the_older_one_stays(path: Path, tmp_path: Path) -> None:
    database = Database(url_of(path))
    backup(database, tmp_path / "backup.db")
    database.close()
    before = (tmp_path / "backup.db").read_bytes()
    damage(path)
    database = Database(url_of(path))
    with pytest.raises(StoreFailure, match="damaged"):
        backup(database, tmp_path / "backup.db")
    database.close()
    assert (tmp_path / "backup.db").read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_a_backup_that_is_damaged_on_its_way_replaces_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = open_database(url_of(path))
    backup(database, tmp_path / "backup.db")
    database.close()
    before, copyfile = path.read_bytes(), shutil.copyfile

    def copy_badly(source: Path, target: Path) -> None:
        copyfile(source, target)
        damage(target)

    monkeypatch.setattr(shutil, "copyfile", copy_badly)
    with pytest.raises(StoreFailure, match="damaged"):
        restore(tmp_path / "backup.db", path)
    assert path.read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_backups_and_what_is_restored_are_for_their_owner_alone(path: Path, tmp_path: Path) -> None:
    path.chmod(0o644)
    mask = os.umask(0o022)
    try:
        made = tmp_path / "made.db"
        database = open_database(url_of(path))
        backup(database, made)
        database.close()
        restore(made, path)
    finally:
        os.umask(mask)
    assert [oct(found.stat().st_mode & 0o777) for found in (made, path)] == ["0o600", "0o600"]


def test_a_backup_of_a_newer_version_replaces_nothing(path: Path, tmp_path: Path) -> None:
    database = open_database(url_of(path))
    with database.write() as tx:
        tx.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    backup_failed = tmp_path / "newer.db"
    database.close()
    shutil.copy(path, backup_failed)
    with pytest.raises(StoreFailure, match="database is newer"):
        restore(backup_failed, tmp_path / "other.db")
    assert not (tmp_path / "other.db").exists()


def test_a_database_in_use_is_not_replaced(path: Path, tmp_path: Path) -> None:
    database = open_database(url_of(path))
    backup(database, tmp_path / "backup.db")
    with database.read() as tx:
        assert len(jobs.everything(tx)) == 3
        with pytest.raises(DatabaseBusy, match="Stop the daemon"):
            restore(tmp_path / "backup.db", path)
    database.close()
    restore(tmp_path / "backup.db", path)


def test_a_damaged_database_can_be_replaced(path: Path, tmp_path: Path) -> None:
    database = open_database(url_of(path))
    backup(database, tmp_path / "backup.db")
    database.close()
    path.write_bytes(b"\xff" * 8_192)
    path.with_name(path.name + "-wal").write_bytes(b"old log")
    restore(tmp_path / "backup.db", path)
    restored = open_database(url_of(path))
    assert verify(restored) == []
    restored.close()


@pytest.mark.postgres
def test_a_postgresql_backup_is_restored_by_its_own_program(
    postgresql: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if shutil.which("pg_dump") is None or shutil.which("pg_restore") is None:
        pytest.skip("no PostgreSQL client programs on PATH")
    admin = Database(postgresql)
    with admin._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CREATE DATABASE backed_up"))
        connection.execute(text("CREATE DATABASE restored"))
    admin.close()
    source = make_url(postgresql).set(database="backed_up")
    target = make_url(postgresql).set(database="restored")
    database = open_database(source.render_as_string(), create=True)
    with database.write() as tx:
        jobs.add(tx, spec("a"), NOW)
    backup(database, tmp_path / "backup.dump")
    plain = target.set(drivername="postgresql").render_as_string()
    subprocess.run(["pg_restore", "--dbname", plain, str(tmp_path / "backup.dump")], check=True)
    restored = open_database(target.render_as_string())
    assert rows(restored) == rows(database)
    assert verify(restored) == []
    database.close()
    restored.close()


@pytest.mark.postgres
def test_a_backup_without_pg_dump_is_told(postgresql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    database = Database(postgresql)
    with pytest.raises(BackupFailed, match="pg_dump is not installed"):
        backup(database, tmp_path / "backup.dump")
    database.close()


@pytest.mark.parametrize(
    "address",
    [
        "postgresql+psycopg://me:canary-secret@db/x",
        "postgresql+psycopg://me@db/x?password=canary-secret",
        "postgresql+psycopg://me:canary-secret@db/x?sslpassword=canary-second&sslmode=require",
    ],
)
def test_no_secret_is_an_argument_of_pg_dump(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments of a process are everybody's to read; a program in its place writes down what it was given."""
    program, told = tmp_path / "pg_dump", tmp_path / "told"
    program.write_text(
        f'#!/bin/sh\n{{ echo "args $*"; echo "password $PGPASSWORD"; cat "$PGSERVICEFILE"; '
        f'stat -c %a "$(dirname "$PGSERVICEFILE")"; }} >"{told}" 2>/dev/null\n'
        'for word; do case $word in --file=*) : >"${word#--file=}";; esac; done\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    database = Database(address)
    backup(database, tmp_path / "backup.dump")
    database.close()
    arguments, password, *service = told.read_text().splitlines()
    assert "canary" not in arguments
    assert "db" in arguments
    assert "--format=custom" in arguments.split()
    assert password == "password canary-secret"
    if "sslpassword" in address:
        assert service == ["[uff]", "sslpassword=canary-second", "700"]
        assert "service=uff" in arguments
        assert "sslmode=require" in arguments
