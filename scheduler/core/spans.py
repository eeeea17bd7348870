"""Spans: from when until when a run's session may last, where that follows from its real start. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.core.run import Run, Running, Stopping

if TYPE_CHECKING:
    from scheduler.core.reconcile import Sighting

_ALIKE_SECONDS = 60  # by how much a start may differ from the recorded one
_AHEAD = 4  # a waiting session's hold moves on by this part of its length at a time


@dataclass(frozen=True, slots=True)
class Postpone:
    """The session waits in its platform's queue: its hold, and then its deadline, move on, so that it loses no time."""

    run: Run
    length_seconds: int
    deadline: int


@dataclass(frozen=True, slots=True)
class Begin:
    """The session began at another time than was known; ``deadline`` is until when it may run now."""

    run: Run
    started: int
    deadline: int


def moved_span(run: Run, sighting: Sighting | None, now: int, least_seconds: int) -> Postpone | Begin | None:
    """Return how a run's span moves: with a session that waits, or that began at another time than was known.

    A waiting one moves on by ``least_seconds`` or more at a time.
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
        held = needed <= run.deadline  # the platform was not told of it yet
        ahead = max(least_seconds, wait.length_seconds // _AHEAD)
        return Postpone(run, wait.length_seconds, run.deadline if held else needed + ahead)
    deadline, started = deadline_of(run, sighting), sighting.started
    if started is None:
        started = started_of(run)
    if max(abs(deadline - run.deadline), abs(started - started_of(run))) <= _ALIKE_SECONDS:
        return None
    return Begin(run, started, deadline)


def started_of(run: Run) -> int:
    """Return when a run's meter began, as far as it is recorded."""
    return run.state.started if isinstance(run.state, Running | Stopping) else run.planned_start


def deadline_of(run: Run, sighting: Sighting | None) -> int:
    """Return until when a session may run: what its platform tells of a running one comes before what is recorded."""
    told = sighting.deadline if sighting is not None and sighting.state == "running" else None
    return run.deadline if told is None else told
