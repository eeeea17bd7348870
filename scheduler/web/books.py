"""Books: the ledger, newest facts first."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from scheduler.store import ledger
from scheduler.web.shapes import Ledger, LedgerRow

if TYPE_CHECKING:
    from scheduler.web.leaf import Leaf
    from scheduler.web.source import Source


def entries(source: Source, leaf: Leaf, pool: str | None = None) -> Ledger:
    """Return a page of the ledger, of one pool if asked."""
    with source.read() as tx:
        found, total = ledger.page(tx, leaf.rows, leaf.offset, pool)
    return Ledger(
        entries=[LedgerRow(**asdict(entry)) for entry in found],
        total=total,
        page=leaf.number,
        pages=leaf.pages(total),
    )
