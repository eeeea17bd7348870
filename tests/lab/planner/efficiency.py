"""Efficiency: the share of charged time that one kind of session is expected to keep."""

from __future__ import annotations

import math

from jobs.payload.lane.meter import interval_count


def expected_useful_seconds(
    length_seconds: float, setup_seconds: float, checkpoint_seconds: float, failures_per_second: float
) -> float:
    """Return the training time that a session is expected to keep with as many checkpoints as it makes, term by term.

    A checkpoint is reached with the probability that nothing failed until it was written.
    """
    count = interval_count(length_seconds, setup_seconds, checkpoint_seconds, failures_per_second)
    if not count:
        return 0.0
    interval = (length_seconds - setup_seconds) / count - checkpoint_seconds
    ends = (setup_seconds + number * (interval + checkpoint_seconds) for number in range(1, count + 1))
    return interval * math.fsum(math.exp(-failures_per_second * end) for end in ends)


def expected_charged_seconds(length_seconds: float, failures_per_second: float) -> float:
    """Return how long a session of that length is expected to live, and so to be charged: (1 - exp(-rate L)) / rate."""
    if failures_per_second == 0:
        return length_seconds
    return -math.expm1(-failures_per_second * length_seconds) / failures_per_second


def efficiency(
    length_seconds: float, setup_seconds: float, checkpoint_seconds: float, failures_per_second: float
) -> float:
    """Return expected useful over expected charged time (eta*, 0 to 1): the limit of one kind of session."""
    if length_seconds <= 0:
        return 0.0
    useful = expected_useful_seconds(length_seconds, setup_seconds, checkpoint_seconds, failures_per_second)
    return useful / expected_charged_seconds(length_seconds, failures_per_second)
