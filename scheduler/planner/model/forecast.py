"""Forecast: the jobs that are expected within the horizon, from the arrival times of earlier jobs of the same kind.

The next arrival is expected at the mean interval after the last one. Its probability grows with the number of intervals
and shrinks with their spread; below one half nothing is expected. An announced arrival has probability 1.
"""

from itertools import pairwise
from math import sqrt

from jobs.nouns.window import DAY
from scheduler.core.plan import KeptHours
from scheduler.core.snapshot import Arrivals, Snapshot

SURE_MIN = 0.5
# A job that is late by more than this part of its interval is no longer expected.
LATE_MAX = 0.5
# Only so many of the newest intervals count.
DISTANCES_MAX = 12


def rhythm(instants: tuple[int, ...]) -> tuple[int, float] | None:
    """Return the mean interval in seconds and the probability that the next arrival keeps it; None for one arrival.

    Jobs within a day of each other count as one arrival.
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
    """Return the jobs that are expected within the horizon, sorted by instant and kind."""
    hours = []
    for arrivals in snapshot.arrivals:
        latest = arrivals.latest
        rate = max((rate.steps_per_second for rate in latest.rates.values()), default=0.0) or 1.0
        for at, sure in _expected_arrivals(arrivals, snapshot):
            seconds = round(latest.target_step / rate)
            hours.append(KeptHours(arrivals.kind, "", at, seconds, round(sure, 3), bool(arrivals.expected)))
    return tuple(sorted(hours, key=lambda one: (one.expected_at, one.kind)))


def _expected_arrivals(arrivals: Arrivals, snapshot: Snapshot) -> list[tuple[int, float]]:
    """Return (instant, probability) of each arrival that is expected before the end of the horizon."""
    until = snapshot.now + snapshot.horizon_seconds
    is_open = any(job.name == arrivals.kind for job in snapshot.jobs)  # the next job follows the one that is open
    if arrivals.expected:
        return [(at, 1.0) for at in arrivals.expected if at < until]
    mean_rhythm = rhythm(arrivals.instants)
    if mean_rhythm is None or mean_rhythm[1] < SURE_MIN:
        return []
    seconds, mean_sure = mean_rhythm
    at = arrivals.instants[-1] + seconds
    if at + LATE_MAX * seconds < snapshot.now or (is_open and at <= snapshot.now):
        return []
    expected_at, sure = [], mean_sure
    while at < until and sure >= SURE_MIN:
        expected_at.append((at, sure))
        at, sure = max(at, snapshot.now) + seconds, sure * mean_sure
    return expected_at
