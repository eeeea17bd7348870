"""Watched runs: settled without the platform's word, so what it shows of them later is looked at and booked."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from scheduler.core.ledger import Charge
from scheduler.core.run import Ended, Run
from scheduler.store import runs
from scheduler.store.schema import watched


@dataclass(frozen=True, slots=True)
class Watched:
    """``run`` is watched until ``until``; ``booked`` is the interval the ledger counts for it, None for nothing."""

    run: Run
    until: int
    booked: tuple[int, int] | None

    @property
    def over_since(self) -> int:
        """When the run ended in our books."""
        return self.run.state.at if isinstance(self.run.state, Ended) else 0


_ALL = select(watched.c.run, watched.c.until, watched.c.booked_start, watched.c.booked_end).order_by(watched.c.run)


def everything(tx: Connection) -> list[Watched]:
    """Return the watched runs by launch key."""
    rows = tx.execute(_ALL).all()
    return [
        Watched(
            runs.get(tx, row.run), row.until, None if row.booked_start is None else (row.booked_start, row.booked_end)
        )
        for row in rows
    ]


def keys(tx: Connection) -> set[str]:
    """Return the launch keys of the watched runs."""
    return set(tx.execute(select(watched.c.run)).scalars())


def possible_charges(tx: Connection) -> dict[str, tuple[Charge, ...]]:
    """Return, by pool, charges that count nothing for what was given up and may have been used unseen."""
    charges: dict[str, tuple[Charge, ...]] = {}
    for one in everything(tx):
        if one.booked is None:
            run = one.run
            unseen = Charge(run.planned_start, run.held_until, sign=0, run=run.key, exact=False)
            charges[run.pool] = (*charges.get(run.pool, ()), unseen)
    return charges


def add(tx: Connection, run: str, until: int, booked: tuple[int, int] | None) -> None:
    """Begin to watch a run."""
    start, end = booked or (None, None)
    tx.execute(insert(watched).values(run=run, until=until, booked_start=start, booked_end=end))


def prolong(tx: Connection, run: str, until: int, booked: tuple[int, int] | None = None) -> None:
    """Change until when a run is watched, and what the ledger counts now, if that is given."""
    counted = {"booked_start": booked[0], "booked_end": booked[1]} if booked else {}
    tx.execute(update(watched).where(watched.c.run == run).values(until=until, **counted))


def remove(tx: Connection, run: str) -> None:
    """End the watch."""
    tx.execute(delete(watched).where(watched.c.run == run))
