"""Daemon health: whether a daemon does its work, as its lease and its newest cycle tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from scheduler.store import due, lease

# So many cycles may be missed before something is said; real time, since a platform may take a minute to answer.
_CYCLES_MISSED = 3
_SLACK_WALL_SECONDS = 90


@dataclass(frozen=True, slots=True)
class DaemonHealth:
    """``leader`` holds the lease, ``cycled_at`` is the scheduled second of the newest cycle; None: there is none.

    ``problem`` is a sentence, empty when all is well; ``over`` tells of a rehearsal that nothing happens in any more.
    """

    leader: str | None
    cycled_at: int | None
    problem: str
    over: bool = False


def daemon_health(
    tx: Connection, now: int, cycle_seconds: int, wall_seconds: Callable[[float], float], *, over: bool = False
) -> DaemonHealth:
    """Return the daemon's health; ``wall_seconds`` turns scheduled seconds into real ones.

    A rehearsal that is ``over`` needs no daemon.
    """
    held = lease.current(tx)
    next_at = due.next_due(tx).get(due.CYCLE)
    cycled_at = None if next_at is None else next_at - cycle_seconds
    if over:
        return DaemonHealth(None, cycled_at, "", over=True)
    if held is None:
        problem = "No daemon runs: nothing is planned, launched or settled. Start it: schedctl daemon"
    elif cycled_at is None:
        problem = "The daemon has not finished its first cycle yet."
    elif wall_seconds(now - cycled_at - _CYCLES_MISSED * cycle_seconds) > _SLACK_WALL_SECONDS:
        problem = f"The daemon holds the lease but finished no cycle for {(now - cycled_at) // 60} minutes."
    else:
        problem = ""
    return DaemonHealth(held.holder if held else None, cycled_at, problem)
