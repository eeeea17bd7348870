"""Spans: the start and deadline of a run's session, where they depend on its real start. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.core.run import Run, Running, Stopping

if TYPE_CHECKING:
    from scheduler.core.reconcile import Sighting

_ALIKE_SECONDS = 60  # smaller differences from the recorded start are ignored
_AHEAD = 4  # the hold of a waiting session moves by one part in this many of its length


@dataclass(frozen=True, slots=True)
class Postpone:
    """The session waits in its platform's queue: its hold, and then its deadline, move, so that it loses no time."""

    run: Run
    length_seconds: int
    deadline: int


@dataclass(frozen=True, slots=True)
class Begin:
    """The session began at another time than recorded; ``deadline`` is its new deadline."""

    run: Run
    started: int
    deadline: int


def moved_span(run: Run, sighting: Sighting | None, now: int, least_seconds: int) -> Postpone | Begin | None:
    """Return the change of a run's span for a session that waits or began at another time; None if there is none.

    The span of a waiting session moves by ``least_seconds`` or more at a time.
    """
    if sighting is None:
        return None
    if sighting.state == "queued":
        wait = sighting.wait
        if wait is None or wait.length_seconds is None or wait.deadline is None or not isinstance(run.state, Running):
            return None
        needed = now + wait.length_seconds
        if needed <= min(run.deadline, wait.deadline):
            return None
        within_hold = needed <= run.deadline  # the platform does not have the new deadline yet
        ahead = max(least_seconds, wait.length_seconds // _AHEAD)
        return Postpone(run, wait.length_seconds, run.deadline if within_hold else needed + ahead)
    deadline, started = deadline_of(run, sighting), sighting.started
    if started is None:
        started = started_of(run)
    if max(abs(deadline - run.deadline), abs(started - started_of(run))) <= _ALIKE_SECONDS:
        return None
    return Begin(run, started, deadline)


def started_of(run: Run) -> int:
    """Return the recorded start of a run's charge, or its planned start."""
    return run.state.started if isinstance(run.state, Running | Stopping) else run.planned_start


def deadline_of(run: Run, sighting: Sighting | None) -> int:
    """Return the deadline of a session: the one its platform reports for a running session, else the recorded one."""
    deadline = sighting.deadline if sighting is not None and sighting.state == "running" else None
    return run.deadline if deadline is None else deadline
