"""Errors of the database: one class for each thing that a caller or a person can do about them.

::

    StoreFailure
      DatabaseCorrupt
      DatabaseBusy
      Refused      a unique index, a check or a trigger refused the write
      Stale        a guarded write found a changed state
      Fenced       another daemon holds the lease
      AlreadyRunning
"""

import errno
import os
import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy.exc import DBAPIError, IntegrityError

from jobs.problem import UserError


class StoreFailure(UserError):
    """Base of the errors of the database and of writes to it."""

    def __init__(self, what: str, where: str, why: str, remedy: str) -> None:
        super().__init__(what, why, remedy, where)


def newer_database(where: str, actual: str, expected: str) -> StoreFailure:
    """Return the error for a database whose schema revision ``actual`` is newer than ``expected``."""
    why = f"its schema has revision {actual}, this version knows revisions up to {expected}"
    remedy = "Install the newer version again, or restore a backup made before its upgrade"
    return StoreFailure("database is newer", where, why, remedy)


class DatabaseCorrupt(StoreFailure):
    """The file is not a database, or it is damaged."""


class DatabaseBusy(StoreFailure):
    """Another program held the write lock for longer than the timeout."""


class Refused(StoreFailure):
    """The database refused a write that would have violated a constraint."""


class Stale(StoreFailure):
    """A guarded write found no row in the expected state: another writer changed it first."""

    def __init__(self, subject: str, expected: str, actual: str) -> None:
        why = f"expected {expected}, found {actual}"
        super().__init__("stale write", subject, why, "Load it again and decide again")


class Fenced(StoreFailure):
    """The epoch of this daemon is outdated: another daemon holds the lease now."""

    def __init__(self, epoch: int) -> None:
        why = f"epoch {epoch} has ended: another daemon acquired the lease"
        super().__init__("fenced off", "lease", why, "Stop; restart the daemon if the other one is not wanted")
        self.epoch = epoch


def translated(error: DBAPIError | sqlite3.Error, where: str, path: Path | None) -> StoreFailure | None:
    """Return the StoreFailure for an error of a database driver; None if the error is a bug of this program."""
    cause: BaseException | None = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(error, IntegrityError | sqlite3.IntegrityError):
        return Refused("refused by the database", where, _one_line(cause), "Run `schedctl db verify`")
    if isinstance(cause, sqlite3.Error):
        return _of_sqlite(cause, where, path)
    return _of_postgresql(error, cause, where)


_FULL_REMEDY = "Make room on the disk and try again; nothing that was committed is lost"
CORRUPT_REMEDY = "Run `schedctl db verify`, then restore the newest backup with `schedctl db restore`"
_BUSY_REMEDY = "Try again; if it fails again, look for a program that keeps the database open"
_READ_ONLY_REMEDY = "Check the owner and the mode of the file and of its folder, and how the disk is mounted"
_LEAST_FREE_BYTES = 65_536


def _of_sqlite(error: sqlite3.Error, where: str, path: Path | None) -> StoreFailure | None:
    # Errors raised by the sqlite3 module itself have no error name; they are bugs of this program.
    name: str = getattr(error, "sqlite_errorname", "")
    why = f"{_one_line(error)} ({name})"
    # "SQLITE_IOERR_SHMSIZE" and "SQLITE_BUSY_SNAPSHOT" are kinds of IOERR and BUSY.
    match name.split("_")[1] if "_" in name else "":
        case "FULL":
            return StoreFailure("disk full", where, why, _FULL_REMEDY)
        case "IOERR" if _is_full(path):
            return StoreFailure("disk full", where, why, _FULL_REMEDY)
        case "IOERR":
            return StoreFailure("disk error", where, why, "Check the disk and the system log")
        case "BUSY" | "LOCKED":
            return DatabaseBusy("database is locked", where, why, _BUSY_REMEDY)
        case "READONLY":
            return StoreFailure("database is read-only", where, why, _READ_ONLY_REMEDY)
        case "CORRUPT" | "NOTADB":
            return DatabaseCorrupt("database is damaged", where, why, CORRUPT_REMEDY)
        case "ERROR" if str(error).startswith(("no such table", "no such column")):  # our schema has them
            return DatabaseCorrupt("database is damaged", where, why, CORRUPT_REMEDY)
        case "CANTOPEN" | "PERM" | "AUTH":
            if path is not None and path.exists() and not os.access(path.parent, os.W_OK):
                return StoreFailure("database is read-only", where, why, _READ_ONLY_REMEDY)
            remedy = "Check that it is a file, and that its user may read and write it"
            return StoreFailure("database cannot be opened", where, why, remedy)
        case _:
            return None


def _is_full(path: Path | None) -> bool:
    """Return whether the disk is full; SQLite reports an I/O error if its shared-memory file cannot grow."""
    if path is None:
        return False
    try:
        disk = os.statvfs(path.parent)
    except OSError as error:
        return error.errno == errno.ENOSPC
    return disk.f_bavail * disk.f_frsize < _LEAST_FREE_BYTES


def _of_postgresql(error: Any, cause: BaseException | None, where: str) -> StoreFailure | None:
    state: str = getattr(cause, "sqlstate", None) or ""
    why = f"{_one_line(cause)} ({state})" if state else _one_line(cause)
    match state:
        case "53100":
            return StoreFailure("disk full", where, why, _FULL_REMEDY)
        case "25006":
            return StoreFailure("database is read-only", where, why, "Connect to the primary server")
        case "55P03" | "40001" | "40P01":
            return DatabaseBusy("database is locked", where, why, _BUSY_REMEDY)
        case "XX001" | "XX002" | "42P01" | "42703":
            return DatabaseCorrupt("database is damaged", where, why, "Restore the newest backup (docs/service.md)")
        case "3D000":
            return StoreFailure("no database", where, why, "Create it with `createdb`")
    unreachable = not state and type(cause).__name__ == "OperationalError"
    if unreachable or state[:2] in {"08", "28", "53", "57"} or getattr(error, "connection_invalidated", False):
        remedy = "Check that the server runs and that the URL, the user and the password are right"
        # A failed connection attempt has no SQLSTATE, only the server's message.
        if 'database "' in why and "does not exist" in why:
            return StoreFailure("no database", where, why, "Create it with `createdb`")
        return StoreFailure("database server cannot be used", where, why, remedy)
    return None


def _one_line(error: BaseException | None) -> str:
    return " ".join(str(error).split()) or type(error).__name__
