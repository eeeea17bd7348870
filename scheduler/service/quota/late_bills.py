"""Bills that come late: what a platform says of a session's time an hour after its end is held against our books.

The difference is an ``adjust`` entry with the platform's words as evidence; what was charged is never rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from platforms.base import Observed, PlatformError, SessionState
from scheduler.core.ledger import EntryKind, corrections, fold
from scheduler.core.run import Ended, Run
from scheduler.core.window import DAY
from scheduler.service.outside import border
from scheduler.service.outside.ports import Ports
from scheduler.store import events, ledger, runs

CHECK_EVERY_SECONDS = 600
_SETTLED_SECONDS = 3_600  # after its end, when a bill has had its last figure for long
_CHECKED = "bill.checked"


def recheck(ports: Ports, now: int) -> None:
    """Ask once more what each session cost that ended an hour to a day ago; write down differences."""
    late = [name for name, platform in sorted(ports.platforms.items()) if platform.capabilities.bills_late]
    due = {name: runs for name in late if (runs := _unchecked(ports, name, now))}
    ports.calls.gather("bills", {name: partial(_recheck_pool, ports, name, runs, now) for name, runs in due.items()})


def _recheck_pool(ports: Ports, pool: str, due: Sequence[Run], now: int) -> None:
    try:
        found, _ = border.find(ports, pool, {run.key: run.planned_start for run in due})
    except PlatformError as error:
        ports.log.warning("bill.unknown", pool=pool, why=str(error))
        return
    for run in due:
        seen = found.get(run.key)
        if seen is not None and seen.state is SessionState.ENDED:
            _settle(ports, run, seen, now)


def _unchecked(ports: Ports, pool: str, now: int) -> Sequence[Run]:
    """Return the pool's runs that were charged, ended long enough ago, and were not looked at again since."""
    with ports.database.read() as tx:
        over = [
            run
            for run in runs.since(tx, now - DAY)
            if run.pool == pool
            and isinstance(run.state, Ended)
            and run.state.started is not None
            and run.state.at <= now - _SETTLED_SECONDS
        ]
        return [run for run in over if not events.tail(tx, limit=1, kinds=[_CHECKED], subject=run.key)]


def _settle(ports: Ports, run: Run, seen: Observed, now: int) -> None:
    if seen.started is None or seen.ended is None:
        return
    with ports.write() as tx:
        entries = [entry for entry in ledger.entries(tx, since=now - 2 * DAY, pool=run.pool) if entry.run == run.key]
        missing = corrections(fold(entries).get(run.pool, ()), seen.started, seen.ended)
        price = next((entry.price_microdollars_per_hour for entry in entries if entry.kind is EntryKind.SPEND), 0)
        evidence = f"the bill says {seen.ended - seen.started} s: {seen.detail}"[:500]
        ledger.adjust(tx, run.pool, run.key, missing, now, price, evidence)
        seconds = sum((-1 if credit else 1) * (end - start) for start, end, credit in missing)
        events.append(tx, _CHECKED, run.key, now, pool=run.pool, seconds=seconds)
    if missing:
        ports.log.info("bill.corrected", run=run.key, pool=run.pool, seconds=seconds)
