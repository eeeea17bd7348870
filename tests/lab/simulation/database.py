"""The real store on a file in memory, with a fault point before and after every commit."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from scheduler.store.engine import Database, upgrade
from scheduler.store.errors import DatabaseBusy, StoreFailure
from tests.lab.simulation.faults import Fate
from tests.lab.simulation.prepared import PreparingConnection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection, Engine

    from tests.lab.simulation.faults import Faults

_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder that is memory
SHARED_MEMORY = _MEMORY if _MEMORY.is_dir() else None  # None: where temporary files go


_IDLE_MAX = 2


class FastDatabase(Database):
    """The real store, whose connections stay open and prepare what they are asked again: twice the simulated weeks."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._idle: list[PreparingConnection] = []

    @contextmanager
    def connected(self, engine: Engine) -> Iterator[Connection]:
        """Yield the connection that was used last, if nobody has it."""
        connection = self._idle.pop() if self._idle else PreparingConnection(engine)
        try:
            yield connection
        except BaseException:
            connection.close()  # which rolls back
            raise
        if len(self._idle) < _IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close all connections; the object may be used again."""
        while self._idle:
            self._idle.pop().close()
        super().close()


class SimulatedDatabase(FastDatabase):
    """The daemon's view: each transaction passes the points ``begin``, ``commit <`` and ``commit >``."""

    faults: Faults | None = None

    def read(self) -> AbstractContextManager[Connection]:
        """One read transaction; see Database.read."""
        if self.faults is not None and self.faults.point("read") is Fate.ERROR:
            raise DatabaseBusy("database is locked", self.where, "injected", "Try again")
        return super().read()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One write transaction; see Database.write."""
        faults = self.faults
        with super().write() as tx:
            yield tx
            if faults is not None and faults.point("commit <", outside=False) is Fate.ERROR:
                raise DatabaseBusy("database is locked", self.where, "injected", "Try again")
        if faults is not None and faults.point("commit >") is Fate.ERROR:
            raise StoreFailure("database server cannot be used", self.where, "injected", "Try again")


class Laboratory:
    """A folder, made in ``parent``, with one database file that is made empty again for every simulation."""

    def __init__(self, parent: Path | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="simulation-", dir=parent or SHARED_MEMORY))
        self._path = self._folder / "scheduler.db"
        url = f"sqlite:///{self._path}"
        upgrade(url)
        self._empty = self._path.read_bytes()
        self.database = SimulatedDatabase(url)
        self.people = FastDatabase(url)  # what people use: another process, without our faults

    def clean(self) -> None:
        """Begin with an empty database."""
        self.close_connections()
        for name in ("scheduler.db-wal", "scheduler.db-shm"):
            (self._folder / name).unlink(missing_ok=True)
        self._path.write_bytes(self._empty)
        self.database.faults = None

    def close_connections(self) -> None:
        """Drop every connection, as the end of the process does."""
        self.database.close()
        self.people.close()

    def remove(self) -> None:
        """Remove the folder."""
        self.close_connections()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
