"""Pairs: what a version did better or worse than another, item by item, summed by cluster.

The two saw the same items, so that only their differences count; items of one cluster are not independent, so that
clusters are what there is to count. Both halve the number of items that it takes to see anything, or double the error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jobs.scores import Score

POWER_80 = 2.4864748605243863  # standard errors: 1.645 for 5 % one-sided, and 0.842 for a power of 80 %


@dataclass(frozen=True, slots=True)
class Cluster:
    """Sum of the values of a cluster, and of how many items."""

    total: float
    items: int


@dataclass(frozen=True, slots=True)
class Spread:
    """What a mean over clustered items rests on.

    ``differing`` is the share of items with a value other than 0, of differences p_d. ``design_effect`` says how many
    clustered items are worth as much as one independent one. ``error`` is the standard error of the mean over clusters,
    and ``smallest_effect`` the smallest difference that would show in four of five such sets; both are None when
    nothing varies, as then there is nothing to tell them from.
    """

    items: int
    clusters: int
    mean: float
    differing: float
    design_effect: float
    error: float | None
    smallest_effect: float | None


def clusters_of(values: Iterable[tuple[str, float]]) -> tuple[Cluster, ...]:
    """Return the clusters of (cluster, value) pairs, in the order of their names."""
    clusters: dict[str, list[float]] = {}
    for name, value in values:
        clusters.setdefault(name, []).append(value)
    return tuple(Cluster(math.fsum(clusters[name]), len(clusters[name])) for name in sorted(clusters))


def differences(new: Mapping[str, Score], before: Mapping[str, Score], sign: int) -> list[tuple[str, float]]:
    """Return (cluster, gain) of each item, where a gain is good; both must have scored the same items."""
    return [(score.cluster, sign * (score.value - before[item].value)) for item, score in sorted(new.items())]


def spread_of(values: Sequence[tuple[str, float]]) -> Spread:
    """Return what the mean of (cluster, value) pairs rests on."""
    clusters = clusters_of(values)
    items = len(values)
    mean = math.fsum(value for _, value in values) / items
    differing = sum(1 for _, value in values if value) / items
    variance = math.fsum((value - mean) ** 2 for _, value in values) / (items - 1) if items > 1 else 0.0
    if variance <= 1e-24 * max(1.0, mean * mean) or len(clusters) < 2:
        return Spread(items, len(clusters), mean, differing, items / len(clusters), None, None)
    between = math.fsum((cluster.total - mean * cluster.items) ** 2 for cluster in clusters)
    squared = len(clusters) / (len(clusters) - 1) * between / items**2
    error = math.sqrt(squared)
    return Spread(
        items, len(clusters), mean, differing, squared * items / variance, error or None, POWER_80 * error or None
    )
