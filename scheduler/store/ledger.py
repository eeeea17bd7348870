"""The ledger in the database: append-only; a second hold or a second settlement of a run is refused."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, func, insert, select

from scheduler.core.ledger import Charge, EntryKind, LedgerEntry, fold
from scheduler.store.schema import ledger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

_INSERT = insert(ledger)
_ALL = select(
    ledger.c.kind,
    ledger.c.pool,
    ledger.c.run,
    ledger.c.starts_at,
    ledger.c.ends_at,
    ledger.c.at,
    ledger.c.credit,
    ledger.c.price_microdollars_per_hour,
    ledger.c.evidence,
).order_by(ledger.c.id)
_NEWEST_FIRST = _ALL.order_by(None).order_by(ledger.c.id.desc())
_COUNT = select(func.count()).select_from(ledger)
_touching = select(ledger.c.run).where(ledger.c.ends_at > bindparam("since"), ledger.c.run.is_not(None))
# A hold without its spend would count in full, so all entries of a run are read together.
_SINCE = _ALL.where((ledger.c.ends_at > bindparam("since")) | ledger.c.run.in_(_touching))
_ALL_OF_POOL = _ALL.where(ledger.c.pool == bindparam("pool"))
_SINCE_OF_POOL = _SINCE.where(ledger.c.pool == bindparam("pool"))


def append(tx: Connection, entries: Sequence[LedgerEntry]) -> None:
    """Write entries. The database refuses a second hold, and a second spend or release, of a run."""
    if not entries:
        return
    tx.execute(
        _INSERT,
        [
            {
                "kind": entry.kind,
                "pool": entry.pool,
                "run": entry.run,
                "starts_at": entry.start,
                "ends_at": entry.end,
                "at": entry.at,
                "credit": entry.credit,
                "price_microdollars_per_hour": entry.price_microdollars_per_hour,
                "evidence": entry.evidence,
            }
            for entry in entries
        ],
    )


def entries(tx: Connection, since: int | None = None, pool: str | None = None) -> list[LedgerEntry]:
    """Return entries in the order they were written.

    ``since`` keeps the runs that have an entry ending after it, each with all of its entries.
    """
    if pool is None:
        rows = tx.execute(_ALL) if since is None else tx.execute(_SINCE, {"since": since})
    elif since is None:
        rows = tx.execute(_ALL_OF_POOL, {"pool": pool})
    else:
        rows = tx.execute(_SINCE_OF_POOL, {"since": since, "pool": pool})
    return [_entry(row) for row in rows]


def page(tx: Connection, limit: int, offset: int = 0, pool: str | None = None) -> tuple[list[LedgerEntry], int]:
    """Return up to ``limit`` entries, the newest first, after the first ``offset``, and how many there are in all."""
    wanted = [ledger.c.pool == pool] if pool is not None else []
    total: int = tx.execute(_COUNT.where(*wanted)).scalar_one()
    rows = tx.execute(_NEWEST_FIRST.where(*wanted).limit(limit).offset(offset))
    return [_entry(row) for row in rows], total


def charges(tx: Connection, since: int) -> Mapping[str, tuple[Charge, ...]]:
    """Return what counts against each pool: the fold of all entries of runs that reach past ``since``."""
    return _folded(tuple(map(tuple, tx.execute(_SINCE, {"since": since}))))


@lru_cache(maxsize=4)
def _folded(rows: tuple[tuple[Any, ...], ...]) -> Mapping[str, tuple[Charge, ...]]:
    # Planning, reserving and auditing read the same books within one cycle, and often again in the next.
    return MappingProxyType(fold(_entry(row) for row in rows))


def _entry(row: Sequence[Any]) -> LedgerEntry:
    kind, *rest = row
    return LedgerEntry(EntryKind(kind), *rest)
