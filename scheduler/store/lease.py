"""The daemon's right to act: one row, timed by the database's own clock, whose epoch fences every write.

Beside it a lock on a file keeps a second daemon of the same host from starting at all.
"""

from __future__ import annotations

import fcntl
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sqlalchemy import BigInteger, ColumnElement, Connection, bindparam, literal_column, select, update

from jobs.payload.whole_file import write_whole
from scheduler.store.engine import Database
from scheduler.store.errors import Fenced, StoreFailure
from scheduler.store.schema import lease as table


class AlreadyRunning(StoreFailure):
    """Another process of this host has the lock; ``pid`` is None when it could not be read."""

    def __init__(self, path: Path, pid: int | None) -> None:
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__("already running", str(path), f"{holder} holds the lock", "Stop that one first")
        self.pid = pid


@dataclass(frozen=True, slots=True)
class Lease:
    """``holder`` may act until ``until`` (database clock, UTC seconds); ``epoch`` grows with every new holder."""

    holder: str
    epoch: int
    until: int


_CLOCKS: dict[str, ColumnElement[int]] = {
    "sqlite": literal_column("CAST(strftime('%s', 'now') AS INTEGER)", BigInteger),
    "postgresql": literal_column("CAST(floor(extract(epoch FROM clock_timestamp())) AS BIGINT)", BigInteger),
}
_LENGTH = bindparam("length", type_=BigInteger)
_TAKE = {
    name: update(table)
    .where((table.c.until <= clock) | (table.c.holder == bindparam("b_holder")))
    .values(holder=bindparam("b_holder"), epoch=table.c.epoch + 1, until=clock + _LENGTH)
    .returning(table.c.epoch, table.c.until)
    for name, clock in _CLOCKS.items()
}
_RENEW = {
    name: update(table)
    .where(table.c.epoch == bindparam("b_epoch"), table.c.holder == bindparam("b_holder"))
    .values(until=clock + _LENGTH)
    .returning(table.c.until)
    for name, clock in _CLOCKS.items()
}
_CURRENT = {
    name: select(table.c.holder, table.c.epoch, table.c.until).where(table.c.until > clock)
    for name, clock in _CLOCKS.items()
}
# The epoch moves on as well, so that nothing of the holder that left can be written after it.
_FENCE = select(table.c.epoch)


_INSTANCE = "instance"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def holder_of(state_dir: Path) -> str:
    """Return who the daemon of ``state_dir`` is. The caller has locked the folder, so there is one at a time.

    Host and folder are for people. Two machines may be alike in both, or one a copy of the other: the identity that the
    folder was given once, and that of the machine's present boot, tell them apart. Raises OSError.
    """
    path = state_dir / _INSTANCE
    try:
        instance = path.read_text().strip()
    except FileNotFoundError:
        instance = ""
    if not instance:
        instance = os.urandom(8).hex()
        write_whole(path, f"{instance}\n")
    return f"{socket.gethostname()}:{state_dir.resolve()} {instance}-{_BOOT.read_text().strip()[:8]}"


def acquire(db: Database, holder: str, length_seconds: int) -> Lease | None:
    """Take the lease if it is free, over, or ``holder``'s own; None when somebody else holds it.

    ``holder`` must name one process, not one host: its own lease is taken again under a new epoch.
    """
    with db.write() as tx:
        values = {"b_holder": holder, "length": length_seconds}
        row = tx.execute(_TAKE[tx.dialect.name], values).one_or_none()
    return None if row is None else Lease(holder, row.epoch, row.until)


def renew(db: Database, lease: Lease, length_seconds: int) -> Lease:
    """Prolong a lease, even one that is over, as long as no other daemon holds it. Raises Fenced."""
    with db.write() as tx:
        values = {"b_holder": lease.holder, "b_epoch": lease.epoch, "length": length_seconds}
        until = tx.execute(_RENEW[tx.dialect.name], values).scalar_one_or_none()
        if until is None:
            raise Fenced(lease.epoch)
    return Lease(lease.holder, lease.epoch, until)


def release(db: Database, lease: Lease) -> None:
    """Give the lease back so that the next daemon need not wait; nothing happens when it is no longer ours."""
    with db.write() as tx:
        ours = update(table).where(table.c.epoch == lease.epoch, table.c.holder == lease.holder)
        tx.execute(ours.values(holder="", epoch=table.c.epoch + 1, until=0))


def current(tx: Connection) -> Lease | None:
    """Return the current lease by the database's clock."""
    row = tx.execute(_CURRENT[tx.dialect.name]).one_or_none()
    return None if row is None else Lease(row.holder, row.epoch, row.until)


def fence(tx: Connection, epoch: int) -> None:
    """Raise Fenced unless the lease still carries ``epoch``. First statement of every write of the daemon."""
    if tx.execute(_FENCE).scalar() != epoch:
        raise Fenced(epoch)


class FileLock:
    """An exclusive lock on a file, held until :meth:`close`, the end of a ``with``, or the end of the process.

    The file is made if missing. Raises AlreadyRunning, and StoreFailure when it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            remedy = "Let the daemon's user write there, or set state_dir to another folder"
            raise StoreFailure("state folder cannot be used", str(path), error.strerror or "", remedy) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            written = os.read(self._descriptor, 32).strip()
            os.close(self._descriptor)
            raise AlreadyRunning(path, int(written) if written.isdigit() else None) from None
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def close(self) -> None:
        """Let the next process have it. The file stays: removing it would let two processes lock two files."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
