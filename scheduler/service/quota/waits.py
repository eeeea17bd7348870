"""Waits: what a platform bills of the time in which sessions of ours waited in its queue, booked to those sessions.

No platform says which session a second of its total belongs to. What its total shows beyond our ledger, up to the time
that sessions charged since the last look had waited, is theirs. While a session lives its hold covers its wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.run import Ended
from scheduler.store import ledger, prices, runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from platforms.base import QuotaReading
    from scheduler.core.ledger import Charge
    from scheduler.core.pool import Pool
    from scheduler.core.run import Run
    from scheduler.core.window import Window


def book_waits(
    tx: Connection,
    pool: Pool,
    charges: Sequence[Charge],
    reading: QuotaReading,
    window: Window,
    difference: int,
    since: int,
    now: int,
) -> int:
    """Book what ``difference`` shows of waits to the sessions charged from ``since`` on; return the seconds in window.

    Where it is less than they waited, each is booked the same part. A total tells nothing of a window that is over: of
    a wait that began before ``window``, the earlier part is booked in full where the pool is known to bill waits.
    """
    booked = {charge.run: charge.start for charge in reversed(charges) if charge.waited}  # from when on
    waits = {
        run.key: (run.planned_start, booked.get(run.key, run.state.started))
        for run in _charged_since(tx, pool, window, since)
        if isinstance(run.state, Ended) and run.state.started is not None
    }
    inside = {key: window.overlap(*wait) for key, wait in waits.items() if wait[1] > wait[0]}
    unbooked, total = min(max(0, difference), sum(inside.values())), sum(inside.values())
    intervals: list[tuple[str, int, int]] = []
    given = passed = 0
    for key, seconds in inside.items():
        passed += seconds
        part = unbooked * passed // total - given if total else 0  # sums up exactly, whatever is rounded
        given += part
        begins, began = waits[key]
        if part:
            intervals.append((key, min(began, window.end) - part, min(began, window.end)))
        if begins < window.start and (2 * part > seconds if seconds else booked):
            intervals.append((key, begins, min(began, window.start)))
    price = prices.of(tx, pool)
    evidence = f"billed while it waited: {pool.platform} reports {reading.used_seconds} s used"
    ledger.append(
        tx,
        [
            LedgerEntry(
                kind=EntryKind.ADJUST,
                pool=pool.name,
                run=key,
                start=start,
                end=end,
                at=now,
                price_microdollars_per_hour=price,
                evidence=f"{evidence}, {reading.used_seconds - difference} s are explained",
            )
            for key, start, end in intervals
        ],
    )
    return unbooked


def _charged_since(tx: Connection, pool: Pool, window: Window, since: int) -> list[Run]:
    """Return the pool's runs that were charged from ``since`` on, whenever they ran."""
    oldest = min(window.start, since)
    entries = ledger.entries(tx, since=oldest, pool=pool.name)
    charged = {entry.run for entry in entries if entry.kind is EntryKind.SPEND and entry.at >= since}
    return [run for run in runs.since(tx, oldest) if run.key in charged]
