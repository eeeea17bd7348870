"""Column types: values are what was written, so that a damaged row differs from an unusual one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, Float, Integer, MetaData, Text, text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator


class WrongType(ValueError):
    """A column holds a value of a type that is never written there: the row is damaged."""

    def __init__(self, expected: str, value: object) -> None:
        super().__init__(f"{type(value).__name__} where {expected} is written")


class _Checked:
    """A type whose values are what was written: SQLite gives back whatever a damaged file holds.

    PostgreSQL has types of its own for these and guards them.
    """

    written: tuple[type, ...]

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """Return what a value read is passed through; it raises WrongType."""
        above: Any = super()
        convert = above.result_processor(dialect, coltype)
        good = {*self.written, type(None)}
        name = f"a {type(self).__name__.lower()}"

        def checked(value: Any) -> Any:
            if type(value) not in good:
                raise WrongType(name, value)
            return value if convert is None else convert(value)

        return checked


class Whole(_Checked, BigInteger):
    """A whole number, of 64 bits."""

    written = (int,)


class Number(_Checked, Float[float]):
    """A number."""

    written = (float, int)


class Flag(_Checked, Boolean):
    """True or false."""

    written = (bool, int)


class Words(TypeDecorator[str]):
    """Text from anywhere: what no database can hold (NUL, half a surrogate pair) is replaced, not refused."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return ``value`` with unstorable characters replaced."""
        del dialect
        if value is None or (value.isascii() and "\0" not in value):
            return value
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], str | None]:
        """Return what a value read is passed through; it raises WrongType. No driver of ours converts text."""
        del dialect, coltype
        return _text


def _text(value: Any) -> str | None:
    if value is None or type(value) is str:
        return value
    raise WrongType("text", value)


# SQLite numbers rows by itself only in a column whose type is exactly INTEGER.
Serial = BigInteger().with_variant(Integer(), "sqlite")


# How tables are declared: one set of them, how what they enforce is named, and what many columns have in common.
#
# Migrations use it too: what a function makes of its arguments never changes.
metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def one_of(column: str, *values: str) -> CheckConstraint:
    """Return the rule that a column holds one of these words."""
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


def key(kind: Any, *names: str) -> list[Column[Any]]:
    """Return columns of one kind by which rows are named."""
    return [Column(name, kind, primary_key=True, autoincrement=False) for name in names]


def required(kind: Any, *names: str) -> list[Column[Any]]:
    """Return columns of one kind that always have a value."""
    return [Column(name, kind, nullable=False) for name in names]


def optional(kind: Any, *names: str) -> list[Column[Any]]:
    """Return columns of one kind that may have no value."""
    return [Column(name, kind) for name in names]


def rows(condition: str) -> dict[str, Any]:
    """Return the options that give an index these rows alone."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}
