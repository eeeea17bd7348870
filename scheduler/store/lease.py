"""The daemon's lease: one row that names the daemon which may write, with times by the database's clock.

Every write of a daemon first compares its epoch with the row. A file lock prevents a second daemon on the same host.
"""

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
    """Another process of this host has the lock; ``pid`` is None if it could not be read."""

    def __init__(self, path: Path, pid: int | None) -> None:
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__("already running", str(path), f"{holder} holds the lock", "Stop that one first")
        self.pid = pid


@dataclass(frozen=True, slots=True)
class Lease:
    """``holder`` may write until ``until`` (database clock, UTC seconds); ``epoch`` grows with every new holder."""

    holder: str
    epoch: int
    until: int


_CLOCKS: dict[str, ColumnElement[int]] = {
    "sqlite": literal_column("CAST(strftime('%s', 'now') AS INTEGER)", BigInteger),
    "postgresql": literal_column("CAST(floor(extract(epoch FROM clock_timestamp())) AS BIGINT)", BigInteger),
}
_LENGTH = bindparam("length", type_=BigInteger)
_ACQUIRE = {
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
# The epoch is compared, not the holder: a release changes the epoch, so the former holder cannot write.
_FENCE = select(table.c.epoch)

_INSTANCE = "instance"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def holder_of(state_dir: Path) -> str:
    """Return the identity of the daemon of ``state_dir``. The caller has locked the folder, so it has one daemon.

    People recognise it by the host and the folder. Two machines may have the same names, and one may be a copy of the
    other, so the identity also has an ID stored in the folder and the ID of the machine's present boot. Raises OSError.
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
    """Acquire the lease if it is free or expired, or if ``holder`` has it; return None if another holder has it.

    ``holder`` must name one process, not one host: its own lease is acquired again with a new epoch.
    """
    with db.write() as tx:
        values = {"b_holder": holder, "length": length_seconds}
        row = tx.execute(_ACQUIRE[tx.dialect.name], values).one_or_none()
    return None if row is None else Lease(holder, row.epoch, row.until)


def renew(db: Database, lease: Lease, length_seconds: int) -> Lease:
    """Renew a lease, even an expired one. Raises Fenced if another daemon acquired it."""
    with db.write() as tx:
        values = {"b_holder": lease.holder, "b_epoch": lease.epoch, "length": length_seconds}
        until = tx.execute(_RENEW[tx.dialect.name], values).scalar_one_or_none()
        if until is None:
            raise Fenced(lease.epoch)
    return Lease(lease.holder, lease.epoch, until)


def release(db: Database, lease: Lease) -> None:
    """Release the lease, so that the next daemon need not wait; do nothing if it is no longer ours."""
    with db.write() as tx:
        ours = update(table).where(table.c.epoch == lease.epoch, table.c.holder == lease.holder)
        tx.execute(ours.values(holder="", epoch=table.c.epoch + 1, until=0))


def current(tx: Connection) -> Lease | None:
    """Return the lease that is valid by the database's clock, or None."""
    row = tx.execute(_CURRENT[tx.dialect.name]).one_or_none()
    return None if row is None else Lease(row.holder, row.epoch, row.until)


def fence(tx: Connection, epoch: int) -> None:
    """Raise Fenced unless the lease has this ``epoch``. Every write of the daemon calls this first."""
    if tx.execute(_FENCE).scalar() != epoch:
        raise Fenced(epoch)


class FileLock:
    """An exclusive lock on a file, held until :meth:`close`, the end of a ``with``, or the end of the process.

    The file is created if it is missing. Raises AlreadyRunning, and StoreFailure if it cannot be opened.
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
        """Release the lock. The file is kept: if it were removed, two processes could lock two files."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
