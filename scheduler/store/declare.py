"""How tables are declared: one set of them, how what they enforce is named, and what many columns have in common.

Migrations use it too: what a function makes of its arguments never changes.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import CheckConstraint, Column, MetaData, text

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


def required(kind: Any, *names: str) -> list[Column[Any]]:
    """Return columns of one kind that always have a value."""
    return [Column(name, kind, nullable=False) for name in names]


def optional(kind: Any, *names: str) -> list[Column[Any]]:
    """Return columns of one kind that may have no value."""
    return [Column(name, kind) for name in names]


def rows(condition: str) -> dict[str, Any]:
    """Return the options that give an index these rows alone."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}
