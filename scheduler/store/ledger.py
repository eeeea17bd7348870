"""The ledger in the database: append-only; a second hold or a second settlement of a run is refused."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, bindparam, func, insert, select

from scheduler.core.ledger import Charge, EntryKind, LedgerEntry, fold
from scheduler.store.schema import ledger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
_NEWEST = select(func.max(ledger.c.id))
_COUNT = select(func.count()).select_from(ledger)
_touching = select(ledger.c.run).where(ledger.c.ends_at > bindparam("since"), ledger.c.run.is_not(None))
# A hold without its spend would count in full, so all entries of a run are read together. Both sides have an index.
_SINCE = _ALL.where(ledger.c.run.in_(_touching) | (ledger.c.run.is_(None) & (ledger.c.ends_at > bindparam("since"))))
_ALL_OF_POOL = _ALL.where(ledger.c.pool == bindparam("pool"))
_SINCE_OF_POOL = _SINCE.where(ledger.c.pool == bindparam("pool"))
_NEVER = 1 << 62


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
    return [_entry(tuple(row)) for row in rows]


def page(tx: Connection, limit: int, offset: int = 0, pool: str | None = None) -> tuple[list[LedgerEntry], int]:
    """Return up to ``limit`` entries, the newest first, after the first ``offset``, and how many there are in all."""
    wanted = [ledger.c.pool == pool] if pool is not None else []
    total: int = tx.execute(_COUNT.where(*wanted)).scalar_one()
    rows = tx.execute(_NEWEST_FIRST.where(*wanted).limit(limit).offset(offset))
    return [_entry(tuple(row)) for row in rows], total


def newest_number(tx: Connection) -> int:
    """Return the number of the newest entry, 0 when there is none; entries are only ever added."""
    return tx.execute(_NEWEST).scalar() or 0


def charges(tx: Connection, since: int) -> Mapping[str, tuple[Charge, ...]]:
    """Return what counts against each pool: the fold of all entries of runs that reach past ``since``."""
    newest = tx.execute(_NEWEST).scalar()
    books = _books.get(tx)
    if books is None or books.newest != newest or not books.since <= since < books.until:
        found = entries(tx, since)
        ends: dict[tuple[str | None, int], int] = {}
        for number, entry in enumerate(found):
            which = (entry.run, number if entry.run is None else 0)
            ends[which] = max(ends.get(which, entry.end), entry.end)
        until = min(ends.values(), default=_NEVER)
        books = _books[tx] = _Books(newest, since, until, MappingProxyType(fold(found)))
    return books.charges


@dataclass(frozen=True, slots=True)
class _Books:
    """What was folded when ``newest`` was the newest entry; right for every ``since`` in [since, until)."""

    newest: int | None
    since: int
    until: int  # when the first of the runs lies in the past as a whole
    charges: Mapping[str, tuple[Charge, ...]]


# Planning, reserving and auditing read the same books, and entries are only ever added. Kept for one connection, which
# is given up when a transaction fails: what was rolled back is forgotten with it.
_books: WeakKeyDictionary[Connection, _Books] = WeakKeyDictionary()


@lru_cache(maxsize=4_096)
def _entry(row: tuple[Any, ...]) -> LedgerEntry:
    kind, *rest = row
    return LedgerEntry(EntryKind(kind), *rest)
