"""The statistics of verdicts: exact binomials, clustered pairs, the sign-flip test and the watch for harm. Pure."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

from jobs.scores import Score
from jobs.votes import Vote

# Exact binomial probabilities by summing terms, in logarithms, so that neither many items nor tiny chances matter.
#
# Sums of a thousand terms are all that verdicts need of a statistics library, which would be 200 MB in every daemon.
# Tests hold them to SciPy's.
ALPHA = 0.05  # one-sided, of every decision here
_NEGLIGIBLE = 1e-17
_HALVINGS = 60


def log_upper_tail(count: int, trials: int, chance: float) -> float:
    """Return ln P(X >= count) of ``trials`` independent ones of ``chance``."""
    if count <= 0:
        return 0.0
    if count > trials or chance <= 0:
        return -math.inf
    if chance >= 1:
        return 0.0
    if count > trials * chance:  # the terms fall from here on
        return _log_sum(count, trials, chance)
    below = math.exp(_log_sum(trials - count + 1, trials, 1 - chance))  # P(X <= count - 1), counted from the other end
    return math.log1p(-below) if below < 1 else -math.inf


def upper_tail(count: int, trials: int, chance: float) -> float:
    """Return P(X >= count)."""
    return math.exp(log_upper_tail(count, trials, chance))


def lower_bound(passed: int, trials: int) -> float:
    """Return Clopper and Pearson's one-sided 95 % lower bound of the chance behind ``passed`` of ``trials``."""
    if passed <= 0:
        return 0.0
    low, high = 0.0, passed / trials
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if upper_tail(passed, trials, middle) > ALPHA:
            high = middle
        else:
            low = middle
    return low


def mcnemar(wins: int, losses: int) -> float:
    """Return the exact one-sided p-value that wins are no likelier than losses; 1 when there are neither."""
    return upper_tail(wins, wins + losses, 0.5)


def _log_sum(count: int, trials: int, chance: float) -> float:
    """Return ln of the sum of terms from ``count`` on, which must lie above the mean: there each is smaller."""
    log_first = (
        math.lgamma(trials + 1)
        - math.lgamma(count + 1)
        - math.lgamma(trials - count + 1)
        + count * math.log(chance)
        + (trials - count) * math.log1p(-chance)
    )
    odds = chance / (1 - chance)
    term = total = 1.0
    for place in range(count, trials):
        term *= (trials - place) / (place + 1) * odds
        total += term
        if term < total * _NEGLIGIBLE:
            break
    return log_first + math.log(total)


# Pairs: what a version did better or worse than another, item by item, summed by cluster.
#
# The two saw the same items, so that only their differences count; items of one cluster are not independent, so that
# clusters are what there is to count. Both halve the number of items that it takes to see anything, or double the
# error.
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


# The default test: signs of whole clusters are flipped, and what comes about so is held against what was seen.
#
# If neither version is better, each cluster's sum might as well have had the other sign. Flipping some of the signs
# gives a smaller or equal sum exactly where the mean over the flipped clusters is not below zero. So the whole test is
# a sorted list of means over random halves of the clusters: the share of them at or below d is the p-value of "no more
# than d", for any d, and the 5 % smallest of them is where the interval begins. Test, margin and interval never
# disagree.
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


# The rollback watch: evidence of harm that may be looked at after every request, and still errs in 1 of 20 cases.
#
# A plain test that is looked at again and again will alarm some day. Here evidence is a bet against "no harm": on
# average the bet wins nothing, so that the stake ever grows to 20 times its size in one of twenty cases at most,
# however often one looks. It holds for independent votes only, hence one vote a cluster: the first that its cluster
# gave.
ALARM = 20.0


@dataclass(frozen=True, slots=True)
class WatchResult:
    """``votes`` counted, one a cluster, and how many of them were ``worse``; ``log_evidence`` is ln E now.

    ``alarm_at`` is the number of the vote with which E passed 20 first, None if it never did: an alarm stands.
    """

    votes: int
    worse: int
    log_evidence: float
    alarm_at: int | None


def watch(stream: Iterable[Vote], usual: float = 0.5) -> WatchResult:
    """Return the evidence in a stream of votes, in its order; the same stream gives the same evidence.

    ``usual`` is the share of worse votes that is no harm: a half for pairs in which one of two versions did worse, the
    known rate of failures for single requests. Raises ValueError when it is no share.
    """
    if not 0 < usual < 1:
        raise ValueError(f"a usual share of {usual} leaves nothing to watch for")
    users: set[str] = set()
    votes = worse = 0
    alarm_at = None
    for vote in stream:
        if vote.cluster in users:
            continue
        users.add(vote.cluster)
        votes += 1
        worse += vote.worse
        # Evidence rises with worse votes alone, and is below 1 while these are no more than usual.
        may_alarm = alarm_at is None and vote.worse and worse > usual * votes
        if may_alarm and log_evidence(worse, votes, usual) > math.log(ALARM):
            alarm_at = votes
    return WatchResult(votes, worse, log_evidence(worse, votes, usual), alarm_at)


def log_evidence(worse: int, votes: int, usual: float = 0.5) -> float:
    """Return ln E of ``worse`` among ``votes``: a bet spread evenly over all shares above the usual one."""
    log_beta = math.lgamma(worse + 1) + math.lgamma(votes - worse + 1) - math.lgamma(votes + 2)
    # The incomplete beta integral from `usual` to 1 is a binomial's lower tail.
    log_above = log_upper_tail(votes + 1 - worse, votes + 1, 1 - usual)
    log_bet = log_beta + log_above - math.log1p(-usual)
    return log_bet - worse * math.log(usual) - (votes - worse) * math.log1p(-usual)
