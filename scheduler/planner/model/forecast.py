"""Forecast: which jobs are expected within the horizon, learned from when others of their kind came.

The next is expected after the last at the mean distance so far. How sure that is follows from how many distances were
seen and how alike they are; below one half nothing is expected. Whoever says when a job comes is believed.
"""

from __future__ import annotations

from itertools import pairwise
from math import sqrt

from scheduler.core.plan import KeptHours
from scheduler.core.snapshot import Arrivals, Snapshot
from scheduler.core.window import DAY

SURE_MIN = 0.5
# So much of its distance a job may be late until it is no longer waited for.
LATE_MAX = 0.5
# Older distances tell little of the present.
DISTANCES_MAX = 12


def rhythm(instants: tuple[int, ...]) -> tuple[int, float] | None:
    """Return the mean seconds from one arrival to the next and how sure the next is to keep them; None for only one.

    Jobs within a day of each other are one arrival.
    """
    starts: list[int] = []
    for before, instant in zip((None, *instants), instants, strict=False):
        if before is None or instant - before >= DAY:
            starts.append(instant)
    distances = [after - before for before, after in pairwise(starts[-DISTANCES_MAX - 1 :])]
    if not distances:
        return None
    mean = sum(distances) / len(distances)
    spread = sqrt(sum((distance - mean) ** 2 for distance in distances) / len(distances)) / mean
    return round(mean), len(distances) / (len(distances) + 1) * max(0.0, 1.0 - spread)


def expected(snapshot: Snapshot) -> tuple[KeptHours, ...]:
    """Return the jobs that are expected to come within the horizon, by instant and kind."""
    hours = []
    for arrivals in snapshot.arrivals:
        latest = arrivals.latest
        rate = max((rate.steps_per_second for rate in latest.rates.values()), default=0.0) or 1.0
        for at, sure in _expected_arrivals(arrivals, snapshot):
            seconds = round(latest.target_step / rate)
            hours.append(KeptHours(arrivals.kind, "", at, seconds, round(sure, 3), bool(arrivals.said)))
    return tuple(sorted(hours, key=lambda one: (one.expected_at, one.kind)))


def _expected_arrivals(arrivals: Arrivals, snapshot: Snapshot) -> list[tuple[int, float]]:
    """Return (instant, how sure) of each arrival that is expected before the horizon."""
    until = snapshot.now + snapshot.horizon_seconds
    there = any(job.name == arrivals.kind for job in snapshot.jobs)  # its next generation comes after this one
    if arrivals.said:
        return [(at, 1.0) for at in arrivals.said if at < until]
    mean_rhythm = rhythm(arrivals.instants)
    if mean_rhythm is None or mean_rhythm[1] < SURE_MIN:
        return []
    seconds, mean_sure = mean_rhythm
    at = arrivals.instants[-1] + seconds
    if at + LATE_MAX * seconds < snapshot.now or (there and at <= snapshot.now):
        return []
    arrivals_expected, sure = [], mean_sure
    while at < until and sure >= SURE_MIN:
        arrivals_expected.append((at, sure))
        at, sure = max(at, snapshot.now) + seconds, sure * mean_sure
    return arrivals_expected
