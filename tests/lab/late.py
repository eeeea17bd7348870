"""A session that goes on after its run was over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.spec import JobSpec
from scheduler.core.run import Ended, Lane, Outcome, Run
from scheduler.core.window import WEEK
from scheduler.store import events, jobs, runs, watched

if TYPE_CHECKING:
    from sqlalchemy import Connection

LATE = "uff-late-0001"


def live_on(tx: Connection, pool: str, now: int) -> None:
    """Write down what the daemon does of such a session, on a pool."""
    jobs.add(tx, JobSpec("late-job", "manager", ("true",), 1_000, steps_per_hour=100.0), now)
    over = Ended(Outcome.LOST, now, now)
    runs.insert(tx, Run(LATE, pool, (Lane(0, "late-job", 1, (0,), None),), now, now, now, over), now)
    watched.add(tx, LATE, now + WEEK, (now, now))
    events.append(tx, "session.lives", LATE, now, why="its run is over, and it goes on")
