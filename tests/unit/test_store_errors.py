"""Each error of a driver means one thing that a person has to do."""

import errno
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from scheduler.store.errors import (
    translated,
)


def error_named(name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = name
    return error


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SQLITE_FULL", "disk full"),
        ("SQLITE_IOERR_READ", "disk error"),
        ("SQLITE_IOERR", "disk error"),
        ("SQLITE_BUSY_SNAPSHOT", "database is locked"),
        ("SQLITE_LOCKED", "database is locked"),
        ("SQLITE_READONLY_DBMOVED", "database is read-only"),
        ("SQLITE_CORRUPT_INDEX", "database is damaged"),
        ("SQLITE_NOTADB", "database is damaged"),
        ("SQLITE_CANTOPEN_ISDIR", "database cannot be opened"),
    ],
)
def test_what_sqlite_says_is_told_apart(tmp_path: Path, name: str, meant: str) -> None:
    failure = translated(error_named(name), "here", tmp_path / "scheduler.db")
    assert failure is not None
    assert failure.what == meant
    assert name in failure.why
    assert failure.remedy


@pytest.mark.parametrize("name", ["SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_WRITE"])
@pytest.mark.parametrize("free_blocks", [0, 15])
def test_an_error_of_a_disk_without_room_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, free_blocks: int
) -> None:
    """In WAL mode the shared-memory file cannot grow, and SQLite calls that an I/O error."""
    disk = SimpleNamespace(f_bavail=free_blocks, f_frsize=4_096)
    monkeypatch.setattr(os, "statvfs", lambda folder: disk)
    failure = translated(error_named(name), "here", tmp_path / "scheduler.db")
    assert failure is not None
    assert failure.what == "disk full"
    disk.f_bavail = 16
    failure = translated(error_named(name), "here", tmp_path / "scheduler.db")
    assert failure is not None
    assert failure.what == "disk error"


@pytest.mark.parametrize(("number", "meant"), [(errno.ENOSPC, "disk full"), (errno.EIO, "disk error")])
def test_a_disk_that_cannot_even_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, meant: str
) -> None:
    def refuse(folder: Path) -> None:
        raise OSError(number, os.strerror(number), str(folder))

    monkeypatch.setattr(os, "statvfs", refuse)
    failure = translated(error_named("SQLITE_IOERR_FSYNC"), "here", tmp_path / "scheduler.db")
    assert failure is not None
    assert failure.what == meant


def test_a_fault_of_ours_is_not_blamed_on_the_database() -> None:
    assert translated(sqlite3.ProgrammingError("Cannot operate on a closed database."), "here", None) is None
