"""Forecast: which jobs are expected within the horizon, learned from when others of their kind came.

The next is expected after the last at the mean distance so far. How sure that is follows from how many distances were
seen and how alike they are; below one half nothing is expected. Whoever says when a job comes is believed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING

from scheduler.core.window import DAY

if TYPE_CHECKING:
    from scheduler.core.snapshot import Arrivals, JobView, Snapshot

SURE_MIN = 0.5
# So much of its distance a job may be late until it is no longer waited for.
LATE_MAX = 0.5
# Older distances tell little of the present.
DISTANCES_MAX = 12
# Names of expected jobs begin with it; a name that a person may give has no space.
EXPECTED = "the next "


@dataclass(frozen=True, slots=True)
class Expected:
    """A job that is not there yet: its kind, when it should come, how sure that is, and how the planner sees it."""

    kind: str
    at: int
    sure: float
    said: bool
    view: JobView


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The mean seconds from one arrival to the next, how sure the next is to keep it, how many come together."""

    seconds: int
    sure: float
    together: float


def rhythm(instants: tuple[int, ...]) -> Rhythm | None:
    """Return how a kind came so far; None when it came once. Those within a day of each other came together."""
    starts: list[int] = []
    for before, instant in zip((None, *instants), instants, strict=False):
        if before is None or instant - before >= DAY:
            starts.append(instant)
    distances = [after - before for before, after in pairwise(starts[-DISTANCES_MAX - 1 :])]
    if not distances:
        return None
    mean = sum(distances) / len(distances)
    spread = sqrt(sum((distance - mean) ** 2 for distance in distances) / len(distances)) / mean
    sure = len(distances) / (len(distances) + 1) * max(0.0, 1.0 - spread)
    return Rhythm(round(mean), sure, len(instants) / len(starts))


def expected(snapshot: Snapshot) -> tuple[Expected, ...]:
    """Return the jobs that are expected to come within the horizon, by kind and instant."""
    found: list[Expected] = []
    for arrivals in sorted(snapshot.arrivals, key=lambda one: one.kind):
        for number, (at, sure) in enumerate(_coming(arrivals, snapshot)):
            name = f"{EXPECTED}{arrivals.kind}" + (f" but {number}" if number else "")
            view = replace(
                arrivals.latest,
                name=name,
                kind=arrivals.kind,
                done_step=0,
                not_before=max(at, snapshot.now + 1),
                retry_at=None,
                deadline=None,
                blocked=None,
                running=None,
                last_pool=None,
                share=None,
                gate=None,
                position=_LAST,
            )
            found.append(Expected(arrivals.kind, at, sure, bool(arrivals.said), view))
    return tuple(found)


_LAST = 1 << 40  # place in the queue: behind all that is there


def _coming(arrivals: Arrivals, snapshot: Snapshot) -> list[tuple[int, float]]:
    """Return (instant, how sure) of each arrival that is expected before the horizon."""
    until = snapshot.now + snapshot.horizon_seconds
    there = any(job.name == arrivals.kind for job in snapshot.jobs)  # its next generation comes after this one
    if arrivals.said:
        return [(at, 1.0) for at in arrivals.said if at < until]
    found = rhythm(arrivals.instants)
    if found is None or found.sure < SURE_MIN:
        return []
    at = arrivals.instants[-1] + found.seconds
    if at + LATE_MAX * found.seconds < snapshot.now or (there and at <= snapshot.now):
        return []
    coming, sure = [], found.sure
    while at < until and sure >= SURE_MIN:
        coming.append((at, sure))
        at, sure = max(at, snapshot.now) + found.seconds, sure * found.sure
    return coming
