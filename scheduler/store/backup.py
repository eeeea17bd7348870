"""Back up a live database, restore a checked backup, and move all rows to another database server."""

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, delete, func, insert, select, text

from config.secret import is_secret
from jobs.payload.store.manifest import sync
from scheduler.clock import pause
from scheduler.store.due import RESTORED
from scheduler.store.engine import Database, open_database, upgrade
from scheduler.store.errors import DatabaseBusy, DatabaseCorrupt, StoreFailure, newer_database, translated
from scheduler.store.lease import current
from scheduler.store.schema import REVISIONS, metadata
from scheduler.store.verify import verify

# Retries while another process has the old database open: a killed process keeps its files open for a moment.
_TRIES, _RETRY_SECONDS = 20, 0.1


class BackupFailed(StoreFailure):
    """A backup or a restore failed; the existing files are unchanged."""

    def __init__(self, where: str, why: str, remedy: str) -> None:
        super().__init__("backup failed", where, why, remedy)


def backup(db: Database, target: Path) -> None:
    """Write a consistent copy of the database to ``target``. Only a complete, checked copy replaces an older file.

    SQLite: one file without a write-ahead log. PostgreSQL: a file in ``pg_dump``'s custom format. Raises StoreFailure.
    """
    with _replacing(target) as partial:
        if db.path is None:
            _dump(db, partial)
        else:
            with closing(_open(db.path, "ro")) as source, closing(sqlite3.connect(partial)) as copy:
                source.backup(copy)
                _make_single_file(copy)
            _check(partial)


def restore(source: Path, target: Path) -> None:
    """Check the backup ``source`` (SQLite), then replace the database file ``target`` with it.

    Raises DatabaseBusy if any process has ``target`` open, DatabaseCorrupt if the backup is damaged, and other
    StoreFailures.
    """
    if not source.is_file():
        raise StoreFailure("no backup", str(source), "there is no such file", "Give the path of a backup")
    if not source.stat().st_size:  # some kernel files also have size 0, and reading them may block for ever
        raise BackupFailed(str(source), "it is empty", "Give the path of a backup")
    with _translated_errors(source):
        try:
            _check(source)
        except sqlite3.DatabaseError as error:
            if isinstance(translated(error, str(source), source), DatabaseCorrupt):
                why = f"it is not a backup of ours, or it is damaged ({error})"
                remedy = "Give another file; the database is unchanged"
                raise DatabaseCorrupt("not restored", str(source), why, remedy) from None
            raise
    with _replacing(target) as partial:
        shutil.copyfile(source, partial)
        _check(partial)
        # This due entry makes the next daemon look for sessions launched after the backup before it launches any.
        with closing(sqlite3.connect(partial, isolation_level=None)) as connection:
            connection.execute("INSERT OR REPLACE INTO due (name, at) VALUES (?, 0)", (RESTORED,))
        _close_old(target)


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary file, readable by its owner only, that replaces ``target`` when the body succeeds."""
    partial = target.with_name(f".{target.name}.partial")
    with _translated_errors(target):
        partial.unlink(missing_ok=True)
        try:
            partial.touch(mode=0o600, exist_ok=False)
            yield partial
            sync(partial)
            partial.replace(target)
            sync(target.parent)
        finally:
            partial.unlink(missing_ok=True)


def _open(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True)


def _make_single_file(connection: sqlite3.Connection) -> None:
    """End WAL mode, because SQLite cannot read a file in WAL mode in a folder that is not writable."""
    (mode,) = connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    if mode != "delete":
        raise sqlite3.OperationalError(f"journal mode stays {mode}")


def _check(path: Path) -> None:
    """Raise StoreFailure unless the file is undamaged and has a known schema revision. Creates no side files."""
    with closing(_open(path, "ro")) as connection:
        problems = [row[0] for row in connection.execute("PRAGMA integrity_check(5)")]
        if problems != ["ok"]:
            raise BackupFailed(str(path), f"the copy is damaged: {'; '.join(problems)}", "Use another backup")
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone():
            raise BackupFailed(str(path), "it is not a database of ours", "Give the path of a backup")
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    if revision not in REVISIONS:
        raise newer_database(str(path), revision, REVISIONS[-1])


def _close_old(target: Path) -> None:
    """Merge the old write-ahead log into the old file: SQLite would replay a remaining log onto the new file."""
    side_files = [target.with_name(target.name + ending) for ending in ("-wal", "-shm")]
    if target.exists():
        tries = 1
        while (error := _merge_log(target)) is not None and tries < _TRIES:
            pause(_RETRY_SECONDS)
            tries += 1
        if error is not None:
            remedy = "Stop the daemon and every schedctl, then restore again"
            raise DatabaseBusy("database is in use", str(target), str(error), remedy)
    for path in side_files:
        path.unlink(missing_ok=True)


def _merge_log(target: Path) -> sqlite3.DatabaseError | None:
    """Merge the log into the old database; return the error if it is in use. A damaged database stays unchanged."""
    try:
        with closing(sqlite3.connect(target, timeout=0)) as old:
            _make_single_file(old)
    except sqlite3.DatabaseError as error:
        failure = translated(error, str(target), target)
        if failure is None or isinstance(failure, DatabaseBusy):
            return error
    return None


def _dump(db: Database, target: Path) -> None:
    program = shutil.which("pg_dump")
    if program is None:
        raise BackupFailed(db.where, "pg_dump is not installed", "Install the PostgreSQL client programs")
    # Passwords are passed in the environment or in a private file: process arguments are readable by all users.
    hidden = {name for name in db.url.query if is_secret(name)}
    variables = {name: value if isinstance(value := db.url.query[name], str) else value[-1] for name in hidden}
    if db.url.password is not None:
        variables["password"] = str(db.url.password)
    url = db.url.set(drivername="postgresql", password=None).difference_update_query(hidden)
    environ = {**os.environ, "PGPASSWORD": variables["password"]} if "password" in variables else {**os.environ}
    with tempfile.TemporaryDirectory(prefix="uff-dump-") as folder:
        service_lines = [f"{name}={word}" for name, word in sorted(variables.items()) if name != "password"]
        if service_lines and "service" not in url.query:
            (service := Path(folder) / "service").write_text("\n".join(["[uff]", *service_lines, ""]), encoding="utf-8")
            url = url.update_query_dict({"service": "uff"})
            environ["PGSERVICEFILE"] = str(service)
        words = [program, "--format=custom", f"--file={target}", f"--dbname={url.render_as_string()}"]
        dump = subprocess.run(words, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if dump.returncode:
        raise BackupFailed(db.where, " ".join(dump.stderr.split())[:500], "Correct what pg_dump reports")


@contextmanager
def _translated_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        failure = translated(error, str(path), path)
        if failure is None:
            raise BackupFailed(str(path), str(error), "Run `schedctl db verify`") from error
        raise failure from error
    except OSError as error:
        raise BackupFailed(str(path), error.strerror or str(error), "Check the folder and its disk") from error


# Move: copy all rows into an empty database, perhaps on another server, and compare both before the commit.
_BATCH_ROWS = 1_000
_APPEND_ONLY = {"ledger", "events", "verdicts"}
_NEXT_ID = text("SELECT setval(pg_get_serial_sequence(:name, 'id'), :highest)")


def move(source: Database, url: str) -> dict[str, int]:
    """Copy all rows of ``source`` into a new database at ``url``; return the number of rows by table.

    One transaction per database; the new one stays empty on any error. Raises StoreFailure if a daemon holds the lease,
    if the new database is not empty, or if the contents differ afterwards.
    """
    with source.read() as tx:
        holder = current(tx)
    if holder is not None:
        remedy = "Stop the daemon first: the copy would lack its later changes"
        raise StoreFailure("not copied", source.where, f"{holder.holder} may still write to it", remedy)
    upgrade(url)
    target = open_database(url)
    try:
        # Nothing is written to the source, but its write lock keeps other processes from writing during the copy.
        with source.write() as old, target.write() as new:
            for name in ("jobs", "runs", "events", "ledger"):
                if new.execute(select(func.count()).select_from(metadata.tables[name])).scalar():
                    why = f"its table {name} has rows"
                    raise StoreFailure("not copied", target.where, why, "Give a database that is new or empty")
            copied = {table.name: _copy(old, new, table) for table in metadata.sorted_tables}
            for table in metadata.sorted_tables:
                if _digest(old, table) != _digest(new, table):
                    raise DatabaseCorrupt(
                        "not copied", target.where, f"its table {table.name} differs from the original", "Try again"
                    )
        problems = verify(target)
    finally:
        target.close()
    if problems:
        raise DatabaseCorrupt(
            "copied, but with errors", target.where, "; ".join(problems[:3]), "Check the original: schedctl db verify"
        )
    return copied


def _copy(old: Connection, new: Connection, table: Table) -> int:
    if table.name not in _APPEND_ONLY:  # append-only tables are empty; migrations may have filled others
        new.execute(delete(table))
    copied = 0
    for rows in _batches(old, table):
        new.execute(insert(table), rows)
        copied += len(rows)
    key = table.c.get("id")
    if copied and key is not None and new.dialect.name == "postgresql" and key.autoincrement is not False:
        # Explicit ids do not advance PostgreSQL's sequence, and the next insert would repeat one of them.
        highest = new.execute(select(func.max(key))).scalar()
        new.execute(_NEXT_ID, {"name": table.name, "highest": highest})
    return copied


def _batches(tx: Connection, table: Table) -> Iterator[list[dict[str, Any]]]:
    """Yield batches of all rows as mappings, in primary-key order."""
    ordered = select(table).order_by(*table.primary_key.columns)
    names = [column.key for column in table.columns]
    offset = 0
    while True:
        rows = tx.execute(ordered.limit(_BATCH_ROWS).offset(offset)).all()
        if not rows:
            return
        yield [dict(zip(names, row, strict=True)) for row in rows]
        offset += len(rows)


def _digest(tx: Connection, table: Table) -> tuple[int, str]:
    """Return the number of rows of a table, and a digest of the rows that does not depend on their order."""
    total, count = 0, 0
    for rows in _batches(tx, table):
        for row in rows:
            line = json.dumps(list(row.values()), default=str).encode()
            total ^= int.from_bytes(hashlib.sha256(line).digest())
            count += 1
    return count, f"{total:064x}"
