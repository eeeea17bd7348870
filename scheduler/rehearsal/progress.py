"""One line that says where a rehearsal stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.plural import counted
from scheduler.core.ledger import fold
from scheduler.core.reasons import show
from scheduler.store import jobs, ledger, runs

if TYPE_CHECKING:
    from scheduler.app import App


def line_of(app: App, start: int, end: int) -> str:
    """Return the line: scheduled time, live sessions, charged hours by pool, steps of each job."""
    now = app.clock.now()
    with app.database.read() as tx:
        records = jobs.everything(tx)
        live = runs.live(tx)
        charges = fold(ledger.entries(tx))
    share = min(1.0, (now - start) / (end - start))
    spent = {
        pool: sum(charge.sign * (charge.end - charge.start) for charge in found if not charge.held) / 3_600
        for pool, found in charges.items()
    }
    hours = " ".join(f"{pool} {used:.0f}h" for pool, used in sorted(spent.items()))
    steps = " ".join(f"{record.spec.name}:{record.done_step}" for record in records)
    lanes = sum(len(run.lanes) for run in live)
    at = show(min(now, end), app.settings.zone)
    return f"{share:4.0%} {at} | {counted(len(live), 'session')}, {counted(lanes, 'lane')} | {hours} | {steps}"
