"""Damage: which rows of the database cannot be what was written, by table, key and column.

SQLite keeps what it is given, and a disk or a careless hand may leave anything in a column. Readers stop at the first
value that cannot be; here every value of every row is held against its column's type, and what is written in JSON
against the decoder that its readers use. So whoever stumbled gets the name of the row, and `db verify` lists them all.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sqlalchemy import Boolean, Float, Integer, select

from jobs.spec import ROLES
from scheduler.core.closure import Cause
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.run import Outcome
from scheduler.core.version import VERSION_STATES
from scheduler.store import checkpoints, codec, plan_json
from scheduler.store.schema import metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sqlalchemy import Column, Connection, Table

    Row = Mapping[str, Any]

_INSTANTS = ("at", "until", "deadline", "planned_start", "not_before", "booked_start", "booked_end")
_INSTANT_LEAST, _INSTANT_MOST = -62_135_596_800, 253_402_300_799  # the years 1 to 9999, which can be shown
_UNKNOWN_ENDS = {("limits", "ends_at")}  # windows without an end have one beyond every calendar
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Damage:
    """One value that nobody can have written, or a row that contradicts itself (``column`` names where)."""

    table: str
    key: str
    column: str
    why: str

    def __str__(self) -> str:
        return f"table {self.table}, row {self.key}, column {self.column}: {self.why}"


def find_in_file(path: str) -> Iterator[Damage]:
    """Yield the damage of an SQLite database, row by row. Raises sqlite3.Error when the file cannot be read."""
    with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, isolation_level=None)) as connection:
        if why := _unreadable(connection):
            yield Damage("sqlite_master", "any", "sql", why)
            return
        connection.text_factory = _decoded
        for table in metadata.sorted_tables:
            names = [column.name for column in table.columns]
            columns = ", ".join(f'"{name}"' for name in names)
            for row in connection.execute(f'SELECT {columns} FROM "{table.name}"'):  # noqa: S608 - names of our schema
                yield from _judged(table, dict(zip(names, row, strict=True)))


def _unreadable(connection: sqlite3.Connection) -> str:
    """Return why SQLite cannot read the schema although it takes the file for a database; empty if it can."""
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").close()
    except UnicodeDecodeError:  # the words of SQLite's own error quote the damaged bytes
        return "the names of the schema are not UTF-8"
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        return str(error)
    return ""


def find_in_server(tx: Connection) -> Iterator[Damage]:
    """Yield the damage of a database whose server guards the types, row by row."""
    for table in metadata.sorted_tables:
        for row in tx.execute(select(table)):
            yield from _judged(table, row._asdict())


def _decoded(data: bytes) -> str | _Undecodable:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return _Undecodable(f"not UTF-8 at byte {error.start}")


@dataclass(frozen=True, slots=True)
class _Undecodable:
    why: str


def _judged(table: Table, row: Row) -> Iterator[Damage]:
    key = "/".join(_shown(row[column.name]) for column in table.primary_key.columns)
    whole = True
    for column in table.columns:
        if why := _wrong(column, row[column.name]):
            whole = False
            yield Damage(table.name, key, column.name, why)
    for name, decode in _DECODERS.get(table.name, {}).items() if whole else ():
        try:
            decode(row)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            why = " ".join(str(error).split()) or type(error).__name__
            if isinstance(error, KeyError):
                why = f"{why} is missing or unknown"
            yield Damage(table.name, key, name, f"cannot be read: {why[:200]}")


def _wrong(column: Column[Any], value: object) -> str:
    """Return why ``value`` cannot stand in ``column``, nothing when it can."""
    if value is None:
        return "" if column.nullable else "has no value"
    if isinstance(value, _Undecodable):
        return value.why
    kind = column.type
    if isinstance(kind, Boolean):
        return "" if value in {0, 1} else f"{_shown(value)} is neither true nor false"
    if isinstance(kind, Integer):
        if type(value) is not int:
            return f"{_shown(value)} is no whole number"
        return "" if _is_instant(column, value) else f"{_shown(value)} is no time that a calendar knows"
    if isinstance(kind, Float):
        finite = isinstance(value, int | float) and abs(value) < float("inf")
        return "" if finite else f"{_shown(value)} is no number"
    return "" if isinstance(value, str) else f"{_shown(value)} is no text"


def _is_instant(column: Column[Any], value: int) -> bool:
    name = column.name
    if (column.table.name, name) in _UNKNOWN_ENDS or not (name in _INSTANTS or name.endswith(("_at", "_until"))):
        return True
    return _INSTANT_LEAST <= value <= _INSTANT_MOST


def _shown(value: object) -> str:
    if isinstance(value, _Undecodable):
        return f"({value.why})"
    text = value if isinstance(value, str) else repr(value)
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _objects(*names: str) -> dict[str, Callable[[Row], object]]:
    def reader(name: str) -> Callable[[Row], object]:
        return lambda row: row[name] is None or codec.load_object(row[name])

    return {name: reader(name) for name in names}


def _entry(row: Row) -> object:
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
    "runs": {
        "state_detail": lambda row: codec.run_state(row["state"], row["state_detail"]),
        **_objects("planned"),
    },
    "lanes": {
        "devices": lambda row: codec.devices(row["devices"]),
        "trees": lambda row: codec.texts(row["trees"]),
        "outcome": lambda row: row["outcome"] is None or Outcome(row["outcome"]),
        **_objects("heartbeat"),
    },
    "closures": {"cause": lambda row: Cause(row["cause"])},
    "generations": {"refused": lambda row: codec.names(row["refused"])},
    "ledger": {"kind": _entry},
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
