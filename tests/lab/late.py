"""Sessions that nobody wants or knows: one goes on after its run was over, of one its platform cannot tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.nouns.window import WEEK
from jobs.spec import JobSpec
from scheduler.core.job import Active
from scheduler.core.run import Ended, Lane, Outcome, Run, Running
from scheduler.store import events, jobs, runs, watched

if TYPE_CHECKING:
    from sqlalchemy import Connection

LATE, OFF = "uff-late-0001", "uff-off-0001"


def live_on(tx: Connection, pool: str, now: int) -> None:
    """Write down what the daemon does of such a session, on a pool."""
    jobs.add(tx, JobSpec("late-job", "manager", ("true",), 1_000, steps_per_hour=100.0), now)
    over = Ended(Outcome.LOST, now, now)
    runs.insert(tx, Run(LATE, pool, (Lane(0, "late-job", 1, (0,), None),), now, now, now, over), now)
    watched.add(tx, LATE, now + WEEK, (now, now))
    events.append(tx, "session.lives", LATE, now, why="its run is over, and it goes on")


def vanish(tx: Connection) -> None:
    """Write down what the daemon does of a live session of which its platform cannot tell what became of it."""
    now = 1_000
    jobs.add(tx, JobSpec("off-job", "manager", ("true",), 1_000, steps_per_hour=100.0), now)
    jobs.change_state(tx, "off-job", jobs.get(tx, "off-job").state, Active(OFF, now), "activate", now)
    runs.insert(tx, Run(OFF, "desk-two", (Lane(0, "off-job", 1, (0,), None),), now, now, now, Running("7", now)), now)
    events.append(tx, "run.unclear", OFF, now, why="Slurm does not know its job any more")


def postpone(tx: Connection) -> None:
    """Write down that a job could not be launched where plans placed it."""
    events.append(tx, "launch.postponed", "late-job", 1_000, why="its code is gone")
