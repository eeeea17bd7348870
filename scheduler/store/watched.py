"""Watched runs: they were billed without proof of their end, so later reports of the platform correct the ledger."""

from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from scheduler.core.ledger import Charge
from scheduler.core.run import Ended, Run
from scheduler.store import runs
from scheduler.store.schema import watched


@dataclass(frozen=True, slots=True)
class Watched:
    """A run watched until ``until``; ``booked`` is the interval that the ledger charges for it, None for no charge."""

    run: Run
    until: int
    booked: tuple[int, int] | None

    @property
    def over_since(self) -> int:
        """When the run ended in our ledger, in UTC seconds; 0 if it has not ended."""
        return self.run.state.at if isinstance(self.run.state, Ended) else 0


_ALL = select(watched.c.run, watched.c.until, watched.c.booked_start, watched.c.booked_end).order_by(watched.c.run)


def everything(tx: Connection) -> list[Watched]:
    """Return the watched runs, sorted by run ID."""
    rows = tx.execute(_ALL).all()
    return [
        Watched(
            runs.get(tx, row.run), row.until, None if row.booked_start is None else (row.booked_start, row.booked_end)
        )
        for row in rows
    ]


def keys(tx: Connection) -> set[str]:
    """Return the run IDs of the watched runs."""
    return set(tx.execute(select(watched.c.run)).scalars())


def possible_charges(tx: Connection) -> dict[str, tuple[Charge, ...]]:
    """Return possible charges by pool, each with sign 0: time that we released but a platform may have billed."""
    charges: dict[str, tuple[Charge, ...]] = {}
    for one in everything(tx):
        if one.booked is None:
            run = one.run
            possible = Charge(run.planned_start, run.held_until, sign=0, run=run.key, exact=False)
            charges[run.pool] = (*charges.get(run.pool, ()), possible)
    return charges


def add(tx: Connection, run: str, until: int, booked: tuple[int, int] | None) -> None:
    """Start watching a run."""
    start, end = booked or (None, None)
    tx.execute(insert(watched).values(run=run, until=until, booked_start=start, booked_end=end))


def prolong(tx: Connection, run: str, until: int, booked: tuple[int, int] | None = None) -> None:
    """Change until when a run is watched, and the booked interval if it is given."""
    counted = {"booked_start": booked[0], "booked_end": booked[1]} if booked else {}
    tx.execute(update(watched).where(watched.c.run == run).values(until=until, **counted))


def remove(tx: Connection, run: str) -> None:
    """Stop watching a run."""
    tx.execute(delete(watched).where(watched.c.run == run))
