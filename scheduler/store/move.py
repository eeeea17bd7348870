"""Move: everything a database knows into an empty one, on another server if wanted, proven equal before it counts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Table, delete, func, insert, select, text

from scheduler.store.engine import Database, open_database, upgrade
from scheduler.store.errors import DatabaseCorrupt, StoreFailure
from scheduler.store.lease import current
from scheduler.store.schema import metadata
from scheduler.store.verify import verify

_BATCH_ROWS = 1_000
_APPEND_ONLY = {"ledger", "events", "verdicts"}
_NEXT_ID = text("SELECT setval(pg_get_serial_sequence(:name, 'id'), :highest)")


def move(source: Database, url: str) -> dict[str, int]:
    """Copy all rows of ``source`` into the database at ``url``, making it; return the rows of each table.

    One transaction on either side, and nothing is left in the new database when anything fails. Raises StoreFailure:
    a daemon that holds the lease, a database that is not empty, or one that differs afterwards.
    """
    with source.read() as tx:
        holder = current(tx)
    if holder is not None:
        remedy = "Stop the daemon first: what it does meanwhile would be lost"
        raise StoreFailure("not copied", source.where, f"{holder.holder} may still write to it", remedy)
    upgrade(url)
    target = open_database(url)
    try:
        # Nothing is written to the original, but no other process may write to it meanwhile.
        with source.write() as old, target.write() as new:
            for name in ("jobs", "runs", "events", "ledger"):
                if new.execute(select(func.count()).select_from(metadata.tables[name])).scalar():
                    why = f"its table {name} has rows"
                    raise StoreFailure("not copied", target.where, why, "Give a database that is new or empty")
            copied = {table.name: _copy(old, new, table) for table in metadata.sorted_tables}
            for table in metadata.sorted_tables:
                if _digest(old, table) != _digest(new, table):
                    raise DatabaseCorrupt(
                        "not copied", target.where, f"its table {table.name} differs from the original", "Try again"
                    )
        problems = verify(target)
    finally:
        target.close()
    if problems:
        raise DatabaseCorrupt(
            "copied, but not in order", target.where, "; ".join(problems[:3]), "Check the original: schedctl db verify"
        )
    return copied


def _copy(old: Connection, new: Connection, table: Table) -> int:
    if table.name not in _APPEND_ONLY:  # which are empty; what a migration put into others gives way
        new.execute(delete(table))
    copied = 0
    for rows in _batches(old, table):
        new.execute(insert(table), rows)
        copied += len(rows)
    key = table.c.get("id")
    if copied and key is not None and new.dialect.name == "postgresql" and key.autoincrement is not False:
        # Its own counter knows nothing of rows that came with their numbers.
        highest = new.execute(select(func.max(key))).scalar()
        new.execute(_NEXT_ID, {"name": table.name, "highest": highest})
    return copied


def _batches(tx: Connection, table: Table) -> Iterator[list[dict[str, Any]]]:
    """Yield all rows as mappings, in the order of the primary key."""
    ordered = select(table).order_by(*table.primary_key.columns)
    names = [column.key for column in table.columns]
    offset = 0
    while True:
        rows = tx.execute(ordered.limit(_BATCH_ROWS).offset(offset)).all()
        if not rows:
            return
        yield [dict(zip(names, row, strict=True)) for row in rows]
        offset += len(rows)


def _digest(tx: Connection, table: Table) -> tuple[int, str]:
    """Return how many rows a table has, and a digest that does not depend on their order."""
    total, count = 0, 0
    for rows in _batches(tx, table):
        for row in rows:
            line = json.dumps(list(row.values()), default=str).encode()
            total ^= int.from_bytes(hashlib.sha256(line).digest())
            count += 1
    return count, f"{total:064x}"
