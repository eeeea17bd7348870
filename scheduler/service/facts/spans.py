"""Spans: write down that a run's deadline and its hold move, with a session that waits or that began late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from sqlalchemy import Connection

from platforms.base import Extends, PlatformError
from scheduler.core import run as run_arrows
from scheduler.core.admission import room
from scheduler.core.pool import Pool
from scheduler.core.reconcile import Step
from scheduler.core.run import Run, Running
from scheduler.core.spans import Begin, Postpone
from scheduler.service.outside import border
from scheduler.service.outside.ports import Ports
from scheduler.store import ledger, limits, prices, runs, watched


def postpone(ports: Ports, tx: Connection, step: Postpone, now: int) -> None:
    """Move a waiting run's hold to where it ends if it starts soon; ask it to leave when its pool has no room then."""
    run, pool = step.run, ports.pools.get(step.run.pool)
    if step.deadline == run.deadline:
        return
    starts = now, step.deadline - step.length_seconds
    why = "" if pool is None else _no_room(tx, run, pool, step.length_seconds, starts)
    if why and isinstance(run.state, Running):
        why = f"it waited in its platform's queue past its hours, and {why} leaves no more: its job waits again"
        runs.change_state(tx, run.key, run.state, run_arrows.stop(run.state, why, now), "stop", now)
        return
    _move(tx, run, now, step.deadline, now)


def begin(tx: Connection, step: Begin, now: int) -> None:
    """Record when a session really began, and hold what it may use from there."""
    _move(tx, step.run, step.started, step.deadline, now, started=step.started)


def extend(ports: Ports, steps: Sequence[Step], now: int) -> None:
    """Tell platforms the deadlines that waiting sessions have now; only what is held by then is granted."""
    wanted = {step.run.key: step for step in steps if isinstance(step, Postpone)}
    if not wanted:
        return
    with ports.database.read() as tx:
        granted = [run for key in wanted if isinstance((run := runs.get(tx, key)).state, Running)]
    ports.calls.gather("extend", {run.key: partial(_extend, ports, run, now) for run in granted})


def _extend(ports: Ports, run: Run, now: int) -> None:
    platform = cast("Extends", ports.platforms[run.pool])
    try:
        border.call(run.pool, "extend", lambda: platform.extend(run.key, run.deadline, now))
    except PlatformError as error:  # it keeps the deadline it had, and is reported again
        ports.log.warning("extend.failed", run=run.key, why=str(error))


def _move(tx: Connection, run: Run, start: int, deadline: int, now: int, *, started: int | None = None) -> None:
    held_until = deadline + run.held_until - run.deadline
    state = run.state if started is None else run_arrows.begin(run.state, started)
    runs.move(tx, run, state, deadline, held_until, now)
    if held_until != run.held_until:
        price = next((entry.price_microdollars_per_hour for entry in ledger.of_runs(tx, [run.key])), 0)
        why = "it waits in its platform's queue" if started is None else "it began later than planned"
        ledger.hold(tx, replace(run, held_until=held_until), now, price, why, min(start, held_until))


def _no_room(tx: Connection, run: Run, pool: Pool, length_seconds: int, starts: tuple[int, ...]) -> str:
    """Return what leaves no room for a session that begins at one of these instants; "" when there is room."""
    pool = prices.priced(tx, {pool.name: pool})[pool.name]
    booked = ledger.charges(tx, starts[0] - ledger.LOOK_BACK_SECONDS).get(pool.name, ())
    possible = watched.possible_charges(tx).get(pool.name, ())
    charges = [charge for charge in (*booked, *possible) if charge.run != run.key]
    others = [other for other in runs.live(tx) if other.pool == pool.name and other.key != run.key]
    ends = [other.held_until for other in others for _ in range(pool.places_of(other.devices))]
    observed = limits.observed(tx).get(pool.name, ())
    for start in starts:
        admitted = room(pool, charges, ends, start, observed, run.devices)
        if admitted.seconds < length_seconds + run.held_until - run.deadline:
            return admitted.limited_by
    return ""
