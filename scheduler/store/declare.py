"""How tables are declared: one set of them, how what they enforce is named, and what many columns have in common."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CheckConstraint, Column, MetaData

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


def required(name: str, kind: Any) -> Column[Any]:
    """Return a column that always has a value."""
    return Column(name, kind, nullable=False)
