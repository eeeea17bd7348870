"""Late sessions: runs that were settled because time passed, not because the platform gave its word.

A platform may show a session later than it promised, or start it for a daemon that stood still between its intent and
its launch. Such a session finds its stop flag and leaves; here it is also ended from outside, and what it is billed is
booked as adjustments with evidence. What it published is recorded for the next session of its jobs. The watch ends
with the platform's word, or a day after the hold would have ended.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from platforms.base import PlatformError, Refused, SessionState
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.service.facts.late_checkpoints import record_late
from scheduler.service.outside import border
from scheduler.store import events, ledger, prices, watched

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from platforms.base import Observed
    from scheduler.service.outside.ports import Ports
    from scheduler.store.watched import Watched

LATE = "session.late"


def observe_late(ports: Ports, found: Sequence[Watched], now: int) -> None:
    """Look for each watched run once. No answer changes nothing, however long it takes."""
    by_pool: dict[str, list[Watched]] = {}
    for one in found:
        if one.run.pool in ports.platforms:  # else it waits until the pool is configured again
            by_pool.setdefault(one.run.pool, []).append(one)
    ports.calls.gather(
        "late sessions",
        {pool: partial(_observe_pool, ports, pool, mine, now) for pool, mine in sorted(by_pool.items())},
    )


def _observe_pool(ports: Ports, pool: str, mine: Sequence[Watched], now: int) -> None:
    try:
        seen, refused = border.find(ports, pool, {one.run.key: one.run.planned_start for one in mine})
    except PlatformError as error:
        ports.log.warning("late_session.unknown", pool=pool, why=str(error))
        return
    answered = ports.clock.now()  # what is over may have ended after the question
    for one in mine:
        if one.run.key in seen:
            _settle(ports, one, seen[one.run.key], answered)
        elif one.run.key in {each.subject for each in refused}:
            ports.log.warning("late_session.unclear", run=one.run.key, pool=pool)
        elif now > one.until:
            with ports.write() as tx:
                watched.remove(tx, one.run.key)


def _settle(ports: Ports, one: Watched, seen: Observed, now: int) -> None:
    """Book what the platform showed of the run until ``now``, the instant of its answer."""
    run = one.run
    start = seen.started if seen.started is not None else one.booked[0] if one.booked else run.planned_start
    match seen.state:
        case SessionState.ABSENT:
            _close(ports, one, None, seen.detail or "the platform proves it never started", now)
        case SessionState.ENDED:
            if _collected(ports, one, now) and record_late(ports, {lane.job for lane in run.lanes}, now):
                end = seen.ended if seen.ended is not None else min(now, run.held_until)
                _close(ports, one, (start, max(start, end)), "seen after it had been given up", now)
        case SessionState.QUEUED | SessionState.RUNNING:
            if seen.state is SessionState.RUNNING and one.booked != (start, run.held_until):
                with ports.write() as tx:
                    _book(ports, tx, one, (start, run.held_until), "runs after it had been given up", now)
                    watched.note_booked(tx, run.key, (start, run.held_until))
                ports.log.error(LATE, run=run.key, pool=run.pool, next="it was told to leave, and is ended")
            try:
                border.asked(run.pool, "stop", lambda: ports.platforms[run.pool].stop(run.key, now, force=True))
            except PlatformError as error:
                ports.log.error("stop.failed", run=run.key, why=str(error))


def _collected(ports: Ports, one: Watched, now: int) -> bool:
    """Bring home what the session left; False when that may yet succeed."""
    try:
        border.asked(
            one.run.pool,
            "collect",
            lambda: ports.platforms[one.run.pool].collect(one.run.key, ports.artifacts, now),
        )
    except Refused as error:
        ports.log.error("collect.refused", run=one.run.key, why=str(error))
    except PlatformError as error:
        ports.log.warning("collect.failed", run=one.run.key, why=str(error))
        return False
    return True


def _close(ports: Ports, one: Watched, billed: tuple[int, int] | None, why: str, now: int) -> None:
    with ports.write() as tx:
        _book(ports, tx, one, billed, why, now)
        watched.remove(tx, one.run.key)


def _book(ports: Ports, tx: Connection, one: Watched, billed: tuple[int, int] | None, why: str, now: int) -> None:
    """Have the ledger count ``billed`` in place of what it counts; event ``session.late`` when they differ."""
    if billed == one.booked:
        return
    pool = ports.pools.get(one.run.pool)
    price = prices.of(tx, pool) if pool else 0
    changes = [(one.booked, True), (billed, False)]
    ledger.append(
        tx,
        [
            LedgerEntry(EntryKind.ADJUST, one.run.pool, one.run.key, *interval, now, credit, price, evidence=why)
            for interval, credit in changes
            if interval is not None
        ],
    )
    events.append(tx, LATE, one.run.key, now, booked=one.booked, billed=billed, why=why)
