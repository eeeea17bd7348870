"""Forecast: the jobs that are expected within the horizon, from the arrival times of earlier jobs of the same kind.

The next arrival is expected at the mean interval after the last one. Its probability grows with the number of intervals
and shrinks with their spread; below one half nothing is expected. An announced arrival has probability 1.
"""

from itertools import pairwise
from math import sqrt

from jobs.nouns.window import DAY
from scheduler.core.plan import KeptHours
from scheduler.core.snapshot import Arrivals, Snapshot

PROBABILITY_MIN = 0.5
# A job that is late by more than this part of its interval is not expected any more.
LATE_MAX = 0.5
# Only this many of the newest intervals count.
INTERVALS_MAX = 12


def rhythm(instants: tuple[int, ...]) -> tuple[int, float] | None:
    """Return the mean interval in seconds and the probability that the next arrival keeps it; None for one arrival.

    Jobs within a day of each other count as one arrival.
    """
    starts: list[int] = []
    for before, instant in zip((None, *instants), instants, strict=False):
        if before is None or instant - before >= DAY:
            starts.append(instant)
    intervals = [after - before for before, after in pairwise(starts[-INTERVALS_MAX - 1 :])]
    if not intervals:
        return None
    mean = sum(intervals) / len(intervals)
    spread = sqrt(sum((interval - mean) ** 2 for interval in intervals) / len(intervals)) / mean
    return round(mean), len(intervals) / (len(intervals) + 1) * max(0.0, 1.0 - spread)


def expected(snapshot: Snapshot) -> tuple[KeptHours, ...]:
    """Return the jobs that are expected within the horizon, sorted by instant and kind."""
    hours = []
    for arrivals in snapshot.arrivals:
        latest = arrivals.latest
        rate = max((rate.steps_per_second for rate in latest.rates.values()), default=0.0) or 1.0
        for at, probability in _expected_arrivals(arrivals, snapshot):
            seconds = round(latest.target_step / rate)
            hours.append(KeptHours(arrivals.kind, "", at, seconds, round(probability, 3), bool(arrivals.expected)))
    return tuple(sorted(hours, key=lambda kept: (kept.expected_at, kept.kind)))


def _expected_arrivals(arrivals: Arrivals, snapshot: Snapshot) -> list[tuple[int, float]]:
    """Return (instant, probability) of each arrival that is expected before the end of the horizon."""
    until = snapshot.now + snapshot.horizon_seconds
    is_open = any(job.name == arrivals.kind for job in snapshot.jobs)  # the next job follows the one that is open
    if arrivals.expected:
        return [(at, 1.0) for at in arrivals.expected if at < until]
    mean_rhythm = rhythm(arrivals.instants)
    if mean_rhythm is None or mean_rhythm[1] < PROBABILITY_MIN:
        return []
    seconds, regularity = mean_rhythm
    at = arrivals.instants[-1] + seconds
    if at + LATE_MAX * seconds < snapshot.now or (is_open and at <= snapshot.now):
        return []
    expected_at, probability = [], regularity
    while at < until and probability >= PROBABILITY_MIN:
        expected_at.append((at, probability))
        at, probability = max(at, snapshot.now) + seconds, probability * regularity
    return expected_at
