"""Connections and transactions: readers see one consistent snapshot, and there is one writer at a time.

In SQLite a write begins with BEGIN IMMEDIATE, so it gets the lock before it reads the rows that it changes.
In PostgreSQL a write first gets an advisory lock, which has the same effect. READ COMMITTED is then enough:
writers run one after the other, so none has to be repeated, as it would have to be under SERIALIZABLE.
"""

import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from traceback import clear_frames
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

from sqlalchemy import Boolean, Column, Connection, Engine, Float, Integer, Table, create_engine, event, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InvalidRequestError, NoSuchModuleError

from config.database_address import shown_address
from jobs.payload.bounded_file import read_bounded
from jobs.spec import ROLES
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.reasons import Cause
from scheduler.core.run import Outcome
from scheduler.core.version import VERSION_STATES
from scheduler.store import checkpoints, codec, plan_json
from scheduler.store.errors import CORRUPT_REMEDY, DatabaseCorrupt, StoreFailure, newer_database, translated
from scheduler.store.schema import REVISIONS, metadata

Row = Mapping[str, Any]

_WRITER_LOCK = 0x5C4ED
"""Key of the advisory lock on PostgreSQL; such locks are private to a database."""

_OF_DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, InvalidRequestError)
"""Errors of code that reads a damaged row. InvalidRequestError is raised for a missing or a duplicate row."""

_NO_QUEUE = nullcontext()
_PLAIN_MODULES = {"builtins", "json.decoder", "scheduler.store.schema"}
_DAMAGE_MAX = 100
_EXPLAINED_MAX = 1_000

SILENT_SECONDS = 15.0
"""The idle time after which PostgreSQL ends a writer's transaction, so that others can write."""

_BEGIN_WRITE = {
    "sqlite": "BEGIN IMMEDIATE",
    # All other writers wait for the current one. The server ends one that hangs, or no other daemon could take over.
    "postgresql": "SELECT set_config('idle_in_transaction_session_timeout', '{silent}', true),"
    f" pg_advisory_xact_lock({_WRITER_LOCK})",
}
_INSTANTS = ("at", "until", "deadline", "planned_start", "not_before", "booked_start", "booked_end")
_INSTANT_LEAST, _INSTANT_MOST = -62_135_596_800, 253_402_300_799  # the years 1 to 9999, which datetime can represent
_UNKNOWN_ENDS = {("limits", "ends_at")}  # windows without an end are stored with an end beyond every calendar
_EXCERPT_LENGTH = 60


class Database:
    """A database and its connection pool; safe to share between threads.

    ``busy_seconds`` is how long a write waits for another writer. A server ends a transaction that has been idle for
    ``silent_seconds``, which must exceed the pauses of a working process on a busy machine. With ``read_only`` the
    database itself refuses writes. Connects on first use.
    """

    def __init__(
        self, url: str, *, busy_seconds: float = 5.0, silent_seconds: float = SILENT_SECONDS, read_only: bool = False
    ) -> None:
        self.url = _parse_url(url)
        self.path = Path(self.url.database or "") if self.url.get_backend_name() == "sqlite" else None
        self.where = str(self.path or _address_text(self.url))
        self._engine = _engine(self.url, busy_seconds)
        snapshot = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        self._reader = self._engine.execution_options(**(snapshot if self.path is None else {}))
        self._writer = self._reader if read_only else self._engine
        self._begin_read = None if self.path is None else "BEGIN"
        begin = _BEGIN_WRITE[self.url.get_backend_name()].format(silent=max(1, round(silent_seconds * 1_000)))
        self._begin_write = self._begin_read if read_only else begin
        # Writing threads of this process queue here without a timeout: SQLite's own busy wait is not fair.
        self._writer_queue = threading.RLock()
        self._undamaged_errors: set[str] = set()  # texts of errors after which every row was valid
        if read_only and self.path is not None:
            event.listen(self._engine, "connect", _forbid_writes)

    def read(self) -> AbstractContextManager[Connection]:
        """Open a read transaction: all reads see one consistent snapshot. Raises StoreFailure."""
        return self._transaction(self._reader, self._begin_read)

    def write(self) -> AbstractContextManager[Connection]:
        """Open a write transaction, committed at the end and rolled back by any exception. Raises StoreFailure."""
        return self._transaction(self._writer, self._begin_write, self._writer_queue)

    def close(self) -> None:
        """Close all connections; the object can be used again."""
        self._engine.dispose()

    def connected(self, engine: Engine) -> AbstractContextManager[Connection]:
        """Open a connection; tests override this with a faster one."""
        return engine.connect()

    @contextmanager
    def _transaction(
        self, engine: Engine, begin: str | None, queue: AbstractContextManager[object] = _NO_QUEUE
    ) -> Iterator[Connection]:
        # Begin explicitly: a listener for the engine's "begin" would make every statement 10 % slower.
        try:
            with queue, self.connected(engine) as tx:
                if begin is not None:
                    tx.exec_driver_sql(begin)
                yield tx
                tx.commit()
        except (DBAPIError, sqlite3.Error, *_OF_DAMAGE) as error:
            clear_frames(error.__traceback__)  # a cursor in one of these frames would keep its transaction open
            failure: StoreFailure | None = None
            if isinstance(error, DBAPIError | sqlite3.Error):
                failure = translated(error, self.where, self.path)
            if (failure := failure or self.explain(error)) is None:
                raise
            raise failure from error

    def explain(self, error: BaseException) -> DatabaseCorrupt | None:
        """Return an error that names the damaged rows which may have caused ``error``; None if every row is valid.

        Reads all rows, but only once for the same error text.
        """
        if isinstance(error, OSError):
            may_be_damage = error.errno == errno.EOVERFLOW  # a time outside the calendar's range
        else:
            may_be_damage = isinstance(error, (*_OF_DAMAGE, DBAPIError, sqlite3.Error))
        if not may_be_damage:
            return None
        # Errors of our own modules are subclasses of these and have their own remedy.
        if isinstance(error, ValueError | LookupError) and type(error).__module__ not in _PLAIN_MODULES:
            return None
        words = f"{type(error).__name__}: {error}"[:500]
        if words in self._undamaged_errors:
            return None
        damage = self.damage(_DAMAGE_MAX)
        if not damage:
            if len(self._undamaged_errors) < _EXPLAINED_MAX:
                self._undamaged_errors.add(words)
            return None
        more = f", and {len(damage) - 1} more" if len(damage) > 1 else ""
        more = f", and {_DAMAGE_MAX - 1} more at least" if len(damage) == _DAMAGE_MAX else more
        return DatabaseCorrupt("database is damaged", self.where, f"{damage[0]}{more}", CORRUPT_REMEDY)

    def damage(self, most: int | None = None) -> "list[Damage]":
        """Return the damaged rows, at most ``most`` of them if given. Raises StoreFailure."""
        try:
            if self.path is not None:
                return list(islice(find_in_file(str(self.path)), most))
            with self._reader.connect() as tx:
                rows = ((table, row) for table in metadata.sorted_tables for row in tx.execute(select(table)))
                damage = (one for table, row in rows for one in _damage_of(table, row._asdict()))
                return list(islice(damage, most))
        except (DBAPIError, sqlite3.Error) as error:
            failure = translated(error, self.where, self.path)
            if failure is None:
                raise
            raise failure from error


def open_database(
    url: str, *, create: bool = False, read_only: bool = False, lease_seconds: float = SILENT_SECONDS
) -> Database:
    """Open a readable database that has exactly our schema revision.

    With ``create`` a missing database is created; with ``read_only`` every write is refused. PostgreSQL ends a hanging
    writer within ``lease_seconds``, so that another daemon can continue. Raises StoreFailure for a missing, older,
    newer or damaged database. Damage inside tables is found only by :func:`scheduler.store.verify.verify`.
    """
    database = Database(url, silent_seconds=min(SILENT_SECONDS, lease_seconds), read_only=read_only)
    path = database.path
    if path is not None and (not path.exists() or path.stat().st_size == 0):
        if not create:
            raise StoreFailure("no database", str(path), "there is no such file", "Run `schedctl init`")
        upgrade(url)
    try:
        with database.read() as tx:
            version = revision(tx, database.where)
        if version is None and create:
            upgrade(url)
        else:
            _check_revision(database.where, version)
    except BaseException:
        database.close()
        raise
    return database


def upgrade(url: str) -> tuple[str | None, str]:
    """Migrate a database to our schema revision, creating a missing file; return the revisions before and after.

    Atomic: one transaction. Raises StoreFailure.
    """
    from scheduler.store.migrations import migrate  # before the transaction: can take seconds

    database = Database(url)
    if database.path is not None:
        try:
            database.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            where, why = str(database.path.parent), error.strerror or str(error)
            raise StoreFailure("no folder for the database", where, why, "Create it, or give another one") from None
        # Readable by the owner only, whatever the umask; SQLite gives its side files the same rights. Errors are
        # ignored, because opening the database reports them better.
        with suppress(OSError):
            os.close(os.open(database.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        _refuse_endless(database.path)
    try:
        with database.write() as tx:
            version = revision(tx, database.where)
            if version not in {None, *REVISIONS}:
                _check_revision(database.where, version)
            if version != REVISIONS[-1]:
                migrate(tx, version)
    finally:
        database.close()
    return version, REVISIONS[-1]


def _refuse_endless(path: Path) -> None:
    """Raise StoreFailure for a file that reports size 0 but is not empty, like /proc/kmsg: SQLite would hang."""
    try:
        if path.stat().st_size == 0:
            read_bounded(path, 0)
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.EFBIG, errno.ENXIO}:
            why = "it is a device, a pipe or a file of the kernel"
            raise StoreFailure("no database", str(path), why, "Give another file") from None


_TABLES = {
    "sqlite": text("SELECT name FROM sqlite_master WHERE type = 'table'"),
    "postgresql": text("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"),
}
_REVISION = text("SELECT version_num FROM alembic_version")


def revision(tx: Connection, where: str) -> str | None:
    """Return the schema revision, None for an empty database. Raises DatabaseCorrupt for another program's database."""
    tables = set(tx.execute(_TABLES[tx.dialect.name]).scalars())
    version: str | None = tx.execute(_REVISION).scalar() if "alembic_version" in tables else None
    if version is None and tables - {"alembic_version"}:
        why = f"it holds tables but no schema revision: {', '.join(sorted(tables))[:200]}"
        raise DatabaseCorrupt("not a database of ours", where, why, "Give another URL, or restore a backup")
    return version


def _check_revision(where: str, version: str | None) -> None:
    if version is None or version in REVISIONS[:-1]:
        revision = f"revision {version}" if version else "no revision"
        why = f"its schema has {revision}, this version needs {REVISIONS[-1]}"
        raise StoreFailure("database is older", where, why, "Run `schedctl db upgrade`")
    if version != REVISIONS[-1]:
        raise newer_database(where, version, REVISIONS[-1])


def _parse_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        # The URL may contain a password, so it is not repeated in the message.
        raise StoreFailure("bad database URL", "the configuration", "it cannot be parsed", _URL_HELP) from None
    where = _address_text(parsed)
    if parsed.get_backend_name() not in _TABLES:
        raise StoreFailure("bad database URL", where, "neither SQLite nor PostgreSQL", _URL_HELP)
    if parsed.get_backend_name() == "sqlite" and parsed.database in {None, "", ":memory:"}:
        raise StoreFailure("bad database URL", where, "it has no file name", _URL_HELP)
    return parsed


def _address_text(url: URL) -> str:
    return shown_address(url.render_as_string(hide_password=False))


_URL_HELP = "Use sqlite:////folder/scheduler.db or postgresql+psycopg://user@host/name"

# With these a lost server is noticed within half a minute; the kernel's default is 15 minutes.
_ALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 25_000}

_IMMUTABLE = "&immutable=1"


def _engine(url: URL, busy_seconds: float) -> Engine:
    if url.get_backend_name() == "sqlite":
        # isolation_level None: the driver starts no transactions, Database does.
        engine = create_engine(url, connect_args={"timeout": busy_seconds, "isolation_level": None})
        event.listen(engine, "do_connect", _open_immutable)
        event.listen(engine, "connect", _prepare_sqlite)
    else:
        # Options of the URL come first: psycopg accepts a single option string.
        options = f"{url.query.get('options', '')} -c lock_timeout={round(busy_seconds * 1_000)}"
        connect = {"connect_timeout": 10, "application_name": "uff-scheduler", "options": options, **_ALIVE}
        try:
            engine = create_engine(url, connect_args=connect, pool_pre_ping=True)
        except (ModuleNotFoundError, NoSuchModuleError) as error:
            where = _address_text(url)
            remedy = "Install the extra `postgres`, and write the URL as postgresql+psycopg://"
            raise StoreFailure("no PostgreSQL driver", where, str(error), remedy) from None
    return engine


def _open_immutable(dialect: Any, record: Any, words: list[Any], options: dict[str, Any]) -> None:
    del dialect, record
    if (address := _read_only_address(words[0])).endswith(_IMMUTABLE):
        words[0], options["uri"] = address, True


def _read_only_address(path: str) -> str:
    """Return the URI for reading a file with SQLite; immutable if its folder is read-only and no process has it open.

    SQLite cannot create its two side files in such a folder, and reads immutable files without them.
    """
    sealed = Path(path).is_file() and not os.access(Path(path).parent, os.W_OK) and not Path(f"{path}-wal").exists()
    return f"file:{quote(path)}?mode=ro{_IMMUTABLE if sealed else ''}"


def _prepare_sqlite(connection: sqlite3.Connection, record: Any) -> None:
    del record
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _forbid_writes(connection: sqlite3.Connection, record: Any) -> None:
    del record
    connection.execute("PRAGMA query_only = ON").close()


# Damage: rows that the program cannot have written, by table, key and column.
#
# SQLite stores any value in any column, and a disk fault or a manual edit may leave invalid ones. Readers stop at the
# first invalid value. The functions below check every value against the type of its column, and JSON with the decoder
# of its readers. So an error names the damaged row, and `db verify` lists all damaged rows.
@dataclass(frozen=True, slots=True)
class Damage:
    """A value that the program never writes; ``key`` is the primary key of its row."""

    table: str
    key: str
    column: str
    why: str

    def __str__(self) -> str:
        return f"table {self.table}, row {self.key}, column {self.column}: {self.why}"


def find_in_file(path: str) -> Iterator[Damage]:
    """Yield the damage of an SQLite database, row by row. Raises sqlite3.Error if the file cannot be read."""
    with closing(sqlite3.connect(_read_only_address(path), uri=True, isolation_level=None)) as connection:
        if why := _unreadable(connection):
            yield Damage("sqlite_master", "any", "sql", why)
            return
        connection.text_factory = _decode
        for table in metadata.sorted_tables:
            names = [column.name for column in table.columns]
            columns = ", ".join(f'"{name}"' for name in names)
            for row in connection.execute(f'SELECT {columns} FROM "{table.name}"'):  # noqa: S608 - names of our schema
                yield from _damage_of(table, dict(zip(names, row, strict=True)))


def _unreadable(connection: sqlite3.Connection) -> str:
    """Return why SQLite cannot read the schema of a file that it accepts as a database; empty if it can."""
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").close()
    except UnicodeDecodeError:  # the message of SQLite's error quotes the damaged bytes
        return "the names of the schema are not UTF-8"
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        return str(error)
    return ""


def _decode(data: bytes) -> "str | _Undecodable":
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return _Undecodable(f"not UTF-8 at byte {error.start}")


@dataclass(frozen=True, slots=True)
class _Undecodable:
    why: str


def _damage_of(table: Table, row: Row) -> Iterator[Damage]:
    key = "/".join(_shown_value(row[column.name]) for column in table.primary_key.columns)
    valid = True
    for column in table.columns:
        if why := _value_error(column, row[column.name]):
            valid = False
            yield Damage(table.name, key, column.name, why)
    for name, decode in _DECODERS.get(table.name, {}).items() if valid else ():
        try:
            decode(row)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            why = " ".join(str(error).split()) or type(error).__name__
            if isinstance(error, KeyError):
                why = f"{why} is missing or unknown"
            yield Damage(table.name, key, name, f"cannot be read: {why[:200]}")


def _value_error(column: Column[Any], value: object) -> str:
    """Return why ``value`` is invalid in ``column``; empty or None if it is valid."""
    if value is None:
        return "" if column.nullable else "has no value"
    if isinstance(value, _Undecodable):
        return value.why
    kind = column.type
    if isinstance(kind, Boolean):
        return "" if value in {0, 1} else f"{_shown_value(value)} is neither true nor false"
    if isinstance(kind, Integer):
        if type(value) is not int:
            return f"{_shown_value(value)} is not a whole number"
        return "" if _is_instant(column, value) else f"{_shown_value(value)} is not a time in the years 1 to 9999"
    if isinstance(kind, Float):
        finite = isinstance(value, int | float) and abs(value) < float("inf")
        return "" if finite else f"{_shown_value(value)} is not a number"
    return "" if isinstance(value, str) else f"{_shown_value(value)} is not text"


def _is_instant(column: Column[Any], value: int) -> bool:
    name = column.name
    if (column.table.name, name) in _UNKNOWN_ENDS or not (name in _INSTANTS or name.endswith(("_at", "_until"))):
        return True
    return _INSTANT_LEAST <= value <= _INSTANT_MOST


def _shown_value(value: object) -> str:
    if isinstance(value, _Undecodable):
        return f"({value.why})"
    text = value if isinstance(value, str) else repr(value)
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= _EXCERPT_LENGTH else f"{text[: _EXCERPT_LENGTH - 3]}..."


def _objects(*names: str) -> dict[str, Callable[[Row], object]]:
    def reader(name: str) -> Callable[[Row], object]:
        return lambda row: row[name] is None or codec.load_object(row[name])

    return {name: reader(name) for name in names}


def _read_entry(row: Row) -> object:
    return LedgerEntry(
        EntryKind(row["kind"]),
        row["pool"],
        row["run"],
        row["starts_at"],
        row["ends_at"],
        row["at"],
        credit=bool(row["credit"]),
    )


_DECODERS: dict[str, dict[str, Callable[[Row], object]]] = {
    "jobs": {
        "state_detail": lambda row: codec.job_state(row["state"], row["state_detail"]),
        "spec": lambda row: codec.spec(SimpleNamespace(**row)),  # type: ignore[arg-type]
        "role": lambda row: ROLES.index(row["role"]),
    },
    "runs": {"state_detail": lambda row: codec.run_state(row["state"], row["state_detail"]), **_objects("planned")},
    "lanes": {
        "devices": lambda row: codec.devices(row["devices"]),
        "trees": lambda row: codec.texts(row["trees"]),
        "outcome": lambda row: row["outcome"] is None or Outcome(row["outcome"]),
        **_objects("heartbeat"),
    },
    "closures": {"cause": lambda row: Cause(row["cause"])},
    "generations": {"refused": lambda row: codec.names(row["refused"])},
    "ledger": {"kind": _read_entry},
    "events": _objects("data"),
    "checkpoints": {
        "manifest": lambda row: checkpoints.manifest_of(row["manifest"]),
        "state": lambda row: ("good", "quarantined", "expired").index(row["state"]),
    },
    "plans": {"body": lambda row: plan_json.loaded(row["body"])},
    "model_versions": {"state": lambda row: VERSION_STATES.index(row["state"])},
    "verdicts": _objects("evidence"),
    "deployments": _objects("evidence"),
    "outbox": _objects("body"),
}
