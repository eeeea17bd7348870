"""Prepared statements: what the store executes again and again is compiled once and handed to SQLite's driver.

A simulated week is thousands of statements, most of which SQLite answers in ten microseconds. SQLAlchemy adds a hundred
to each for what no simulation uses: events, cursor strategies, result metadata. It still writes the SQL and says how
parameters are converted; only the calls in between are left out. A statement takes the short way from the second time
on, so that one built for one use never does.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet, finalize

from sqlalchemy import Boolean, Connection
from sqlalchemy.exc import MultipleResultsFound, NoResultFound
from sqlalchemy.sql.dml import UpdateBase
from sqlalchemy.sql.selectable import SelectBase

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqlalchemy import Dialect, Executable


class Rows:
    """All rows of one execution, read at once; the part of SQLAlchemy's CursorResult that the store uses."""

    __slots__ = ("_found", "rowcount")

    def __init__(self, found: list[Any], rowcount: int) -> None:
        self._found = found
        self.rowcount = rowcount

    def __iter__(self) -> Iterator[Any]:
        return iter(self._found)

    def all(self) -> list[Any]:
        """Return the rows."""
        return self._found

    def first(self) -> Any:
        """Return the first row, or None."""
        return self._found[0] if self._found else None

    def one_or_none(self) -> Any:
        """Return the only row, or None. Raises MultipleResultsFound."""
        if len(self._found) > 1:
            raise MultipleResultsFound("Multiple rows were found when one or none was required")
        return self._found[0] if self._found else None

    def one(self) -> Any:
        """Return the only row. Raises NoResultFound, MultipleResultsFound."""
        if not self._found:
            raise NoResultFound("No row was found when one was required")
        return self.one_or_none()

    def scalar(self) -> Any:
        """Return the first value of the first row, or None."""
        return self._found[0][0] if self._found else None

    def scalar_one_or_none(self) -> Any:
        """Return the first value of the only row, or None. Raises MultipleResultsFound."""
        row = self.one_or_none()
        return None if row is None else row[0]

    def scalar_one(self) -> Any:
        """Return the first value of the only row. Raises NoResultFound, MultipleResultsFound."""
        return self.one()[0]

    def scalars(self) -> Rows:
        """Return the first value of every row."""
        return Rows([row[0] for row in self._found], self.rowcount)


@dataclass(frozen=True, slots=True)
class _Prepared:
    sql: str
    fixed: Mapping[str, Any]  # values that are part of the statement
    into: tuple[tuple[str, Callable[[Any], Any]], ...]  # conversions of parameters
    pick: Callable[[Any], Sequence[Any]]  # the values of the parameters as they are given, in the order of their places
    row: Callable[[Any], Any] | None  # None: the statement returns no rows
    truths: tuple[int, ...]  # places of columns that are true or false; no simulation damages a value

    def run(self, driver: sqlite3.Connection, parameters: Any) -> Rows:
        if isinstance(parameters, list | tuple):
            cursor = driver.executemany(self.sql, [self._values(one) for one in parameters])
        elif parameters or self.fixed:
            cursor = driver.execute(self.sql, self._values(parameters or {}))
        else:
            cursor = driver.execute(self.sql)
        if self.row is None:
            return Rows([], cursor.rowcount)
        found = cursor.fetchall()
        if self.truths:
            found = [self._converted(row) for row in found]
        return Rows(list(map(self.row, found)), cursor.rowcount)

    def _values(self, parameters: Mapping[str, Any]) -> Sequence[Any]:
        if not self.fixed and not self.into:
            return self.pick(parameters)
        changed = {**self.fixed, **parameters}
        for name, convert in self.into:
            changed[name] = convert(changed[name])
        return self.pick(changed)

    def _converted(self, row: Sequence[Any]) -> list[Any]:
        values = list(row)
        for place in self.truths:
            values[place] = None if values[place] is None else bool(values[place])
        return values


_seen: WeakSet[Any] = WeakSet()
# By the identity of the statement and the names of its parameters. A statement that goes takes its entry with it.
_known: dict[int, dict[tuple[str, ...], _Prepared | None]] = {}


class PreparingConnection(Connection):
    """A connection to SQLite that prepares the statements which come again."""

    @cached_property
    def driver(self) -> sqlite3.Connection:
        """The driver's own connection."""
        found: Any = self.connection.driver_connection
        return cast("sqlite3.Connection", found)

    def execute(self, statement: Executable, parameters: Any = None, *, execution_options: Any = None) -> Any:
        """Execute as SQLAlchemy does; rows are named tuples, read at once."""
        prepared = None if execution_options else _prepared(statement, parameters, self.dialect)
        if prepared is not None:
            return prepared.run(self.driver, parameters)
        found = super().execute(statement, parameters, execution_options=execution_options or {})
        if not isinstance(statement, SelectBase):
            return found
        rows = list(found.all())
        return Rows(rows, len(rows))

    def exec_driver_sql(self, statement: str, parameters: Any = None, execution_options: Any = None) -> Any:
        """Hand a statement to the driver as it is."""
        del execution_options
        return self.driver.execute(statement, parameters or ())

    def commit(self) -> None:
        """Commit whatever was executed, whichever way it went."""
        if self.in_transaction():
            super().commit()
        else:
            self.driver.commit()


def _prepared(statement: Any, parameters: Any, dialect: Dialect) -> _Prepared | None:
    """Return how to run a statement that was seen before, None for one that SQLAlchemy has to run."""
    one = parameters[0] if isinstance(parameters, list | tuple) and parameters else parameters
    names = tuple(one) if one else ()
    forms = _known.get(id(statement))
    if forms is None:
        if statement not in _seen:
            _seen.add(statement)
            return None
        forms = _known[id(statement)] = {}
        finalize(statement, _known.pop, id(statement), None).atexit = False
    try:
        return forms[names]
    except KeyError:
        forms[names] = _prepare(statement, names, dialect)
        return forms[names]


def _prepare(statement: Any, given: tuple[str, ...], dialect: Dialect) -> _Prepared | None:
    if not isinstance(statement, SelectBase | UpdateBase):
        return None
    compiled: Any = statement.compile(dialect=dialect, column_keys=sorted(given))
    binds = {name: bind for bind, name in compiled.bind_names.items()}
    if any(bind.expanding or bind.literal_execute for bind in binds.values()):
        return None  # its SQL depends on the values
    into = {name: bind.type.dialect_impl(dialect).bind_processor(dialect) for name, bind in binds.items()}
    columns = list(statement.exported_columns)
    return _Prepared(
        sql=compiled.string,
        fixed={name: bind.effective_value for name, bind in binds.items() if name not in given},
        into=tuple((name, convert) for name, convert in into.items() if convert is not None),
        pick=_pick(compiled.positiontup),
        row=_row([str(column.key) for column in columns]) if columns else None,
        truths=tuple(place for place, column in enumerate(columns) if isinstance(column.type, Boolean)),
    )


def _pick(names: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda given: [given[name] for name in names]


def _row(names: Sequence[str]) -> Callable[[Any], Any]:
    make: Any = namedtuple  # noqa: PYI024 - a class statement needs the names before
    # What _make does, without a call in Python for every row.
    return partial(tuple.__new__, make("Row", names, rename=True))
