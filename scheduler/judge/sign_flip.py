"""The default test: signs of whole clusters are flipped, and what comes about so is held against what was seen.

If neither version is better, each cluster's sum might as well have had the other sign. Flipping some of the signs gives
a smaller or equal sum exactly where the mean over the flipped clusters is not below zero. So the whole test is a
sorted list of means over random halves of the clusters: the share of them at or below d is the p-value of "no more
than d", for any d, and the 5 % smallest of them is where the interval begins. Test, margin and interval never disagree.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from scheduler.judge.binomial import ALPHA
from scheduler.judge.pairs import Cluster

RESAMPLES = 9_999
SINGLE_MAX = 4_096  # clusters that are flipped one by one; more are joined, which costs a little power and no validity
_EXACT_MAX = 13  # clusters: all 2^13 choices are fewer than the resamples
_SEED = 20_261_123
_SELECTORS = bytes.maketrans(b"01", b"\0\1")
_EQUAL = 1e-12  # of two means that differ by rounding alone


@dataclass(frozen=True, slots=True)
class HalfSamples:
    """Sorted means over half of the clusters; ``choices`` counts the empty half too."""

    means: tuple[float, ...]
    choices: int

    def p_above(self, shift: float = 0.0) -> float:
        """Return the p-value of "the true mean is at most ``shift``"."""
        return (1 + bisect_right(self.means, shift + _rounding(shift))) / self.choices

    def p_below(self, shift: float = 0.0) -> float:
        """Return the p-value of "the true mean is at least ``shift``"."""
        below = bisect_right(self.means, shift - _rounding(shift))
        return (1 + len(self.means) - below) / self.choices

    def interval(self) -> tuple[float, float] | None:
        """Return where 5 % lie outside on either side; None when there are too few clusters to tell."""
        place = int(ALPHA * self.choices + 1e-9)
        if place < 1 or place > len(self.means):
            return None
        return self.means[place - 1], self.means[-place]


def half_samples(clusters: Sequence[Cluster]) -> HalfSamples:
    """Return the means over all halves of few clusters, else over 9,999 drawn with a fixed seed."""
    if len(clusters) > SINGLE_MAX:
        clusters = _joined(clusters)
    totals = [cluster.total for cluster in clusters]
    items = [cluster.items for cluster in clusters]
    count = len(clusters)
    if count <= _EXACT_MAX:
        halves: Sequence[int] = range(1, 1 << count)
        choices = 1 << count
    else:
        generator = random.Random(_SEED)
        halves = [generator.getrandbits(count) or 1 for _ in range(RESAMPLES)]
        choices = RESAMPLES + 1
    means = []
    for half in halves:
        chosen = f"{half:0{count}b}".encode().translate(_SELECTORS)
        means.append(sum(compress(totals, chosen)) / sum(compress(items, chosen)))
    return HalfSamples(tuple(sorted(means)), choices)


def clusters_needed(alpha: float = ALPHA) -> int:
    """Return how many clusters there must be for anything to be significant at ``alpha``."""
    count = 1
    while 0.5**count > alpha:
        count += 1
    return count


def _joined(clusters: Sequence[Cluster]) -> list[Cluster]:
    groups: list[list[Cluster]] = [[] for _ in range(SINGLE_MAX)]
    order = list(clusters)
    random.Random(_SEED).shuffle(order)
    for place, cluster in enumerate(order):
        groups[place % SINGLE_MAX].append(cluster)
    return [Cluster(sum(one.total for one in group), sum(one.items for one in group)) for group in groups]


def _rounding(shift: float) -> float:
    return _EQUAL * max(1.0, abs(shift))
