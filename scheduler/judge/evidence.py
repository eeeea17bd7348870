"""Statistics of verdicts: exact binomials, clustered pairs, the sign-flip test and the rollback watch. Pure."""

import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

from jobs.grouping import grouped
from jobs.scores import Score, Vote

# Exact binomial probabilities. The terms are summed as logarithms: no overflow with many items or small probabilities.
#
# Written here because verdicts need only these sums, and SciPy would add 200 MB to every daemon. Tests compare the
# results with SciPy's.
ALPHA = 0.05  # significance level, one-sided, of all tests here
_NEGLIGIBLE = 1e-17
_HALVINGS = 60


def log_upper_tail(count: int, trials: int, chance: float) -> float:
    """Return ln P(X >= count) for X ~ Binomial(``trials``, ``chance``)."""
    if count <= 0:
        return 0.0
    if count > trials or chance <= 0:
        return -math.inf
    if chance >= 1:
        return 0.0
    if count > trials * chance:  # above the mean each term is smaller than the one before
        return _log_sum(count, trials, chance)
    below = math.exp(
        _log_sum(trials - count + 1, trials, 1 - chance)
    )  # P(X <= count - 1) = P(failures > trials - count)
    return math.log1p(-below) if below < 1 else -math.inf


def upper_tail(count: int, trials: int, chance: float) -> float:
    """Return P(X >= count) for X ~ Binomial(``trials``, ``chance``)."""
    return math.exp(log_upper_tail(count, trials, chance))


def lower_bound(passed: int, trials: int) -> float:
    """Return the Clopper-Pearson one-sided 95 % lower bound of the probability, from ``passed`` of ``trials``."""
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
    """Return the exact one-sided p-value of "wins are not likelier than losses"; 1.0 if there are neither."""
    return upper_tail(wins, wins + losses, 0.5)


def _log_sum(count: int, trials: int, chance: float) -> float:
    """Return ln P(X >= count); ``count`` is above the mean, so that terms decrease and the sum can stop early."""
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


# Paired differences between two versions, item by item, summed by cluster.
#
# Both versions are scored on the same items, so the analysis uses differences per item: it needs about half as many
# items as two separate samples. Items of one cluster are not independent, so the cluster is the unit of analysis;
# treating items as independent could double the error.
POWER_80 = 2.4864748605243863  # standard errors: 1.645 for 5 % one-sided plus 0.842 for a power of 80 %


@dataclass(frozen=True, slots=True)
class Cluster:
    """A group of dependent items: the sum of their values, and how many items there are."""

    total: float
    items: int


@dataclass(frozen=True, slots=True)
class Spread:
    """The mean of clustered values and its precision.

    ``differing`` is the share of items with a value other than 0. ``design_effect`` is the number of clustered items
    that carry as much information as one independent item. ``error`` is the standard error of the mean, computed over
    clusters; ``smallest_effect`` is the smallest difference detected with a power of 80 %. Both are None if the values
    do not vary.
    """

    items: int
    clusters: int
    mean: float
    differing: float
    design_effect: float
    error: float | None
    smallest_effect: float | None


def clusters_of(values: Iterable[tuple[str, float]]) -> tuple[Cluster, ...]:
    """Return the clusters of (cluster, value) pairs, sorted by name."""
    clusters = grouped(values)
    return tuple(Cluster(math.fsum(clusters[name]), len(clusters[name])) for name in sorted(clusters))


def differences(new: Mapping[str, Score], before: Mapping[str, Score], sign: int) -> list[tuple[str, float]]:
    """Return (cluster, gain) for each item; positive is better. Both mappings must have the same items."""
    return [(score.cluster, sign * (score.value - before[item].value)) for item, score in sorted(new.items())]


def spread_of(values: Sequence[tuple[str, float]]) -> Spread:
    """Return the mean of (cluster, value) pairs with its standard error and design effect."""
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


# The default test: a sign-flip (randomization) test over clusters.
#
# Under the null hypothesis the sign of each cluster's sum is arbitrary. Flipping the signs of a random subset gives a
# sum that is not larger exactly if the mean over the subset is not negative. So the test needs one sorted list: the
# means over random subsets of the clusters. The share of means at or below d is the p-value of "the true mean is at
# most d" for any d, and the 5 % quantile is the lower end of the interval. Test, margin and interval therefore always
# agree.
RESAMPLES = 9_999
SINGLE_MAX = 4_096  # clusters flipped one by one; more are joined, which costs a little power but stays valid
_EXACT_MAX = 13  # with at most this many clusters all 2^n subsets are used: fewer than the resamples
_SEED = 20_261_123
_SELECTORS = bytes.maketrans(b"01", b"\0\1")
_EQUAL = 1e-12  # relative difference of two means below which they differ by rounding only


@dataclass(frozen=True, slots=True)
class HalfSamples:
    """Sorted means over subsets of the clusters; ``choices`` is the number of subsets, with the empty one."""

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
        """Return the 5 % and 95 % quantiles of the mean; None if there are too few clusters."""
        place = int(ALPHA * self.choices + 1e-9)
        if place < 1 or place > len(self.means):
            return None
        return self.means[place - 1], self.means[-place]


def half_samples(clusters: Sequence[Cluster]) -> HalfSamples:
    """Return the means over all subsets of at most 13 clusters, otherwise over 9,999 random subsets (fixed seed)."""
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
    """Return the smallest number of clusters with which any result can be significant at ``alpha``."""
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


# The rollback watch: a sequential test of harm. It may be evaluated after every vote, with at most 5 % false alarms.
#
# A fixed-sample test that is repeated after every vote raises a false alarm sooner or later. This test is an e-process:
# a bet against "no harm" whose expected gain is zero if there is no harm. The probability that the stake ever grows to
# 20 times its size is then at most 1 in 20, however often it is evaluated. The votes must be independent, so only the
# first vote of each cluster is counted.
ALARM = 20.0


@dataclass(frozen=True, slots=True)
class WatchResult:
    """The state of a rollback watch: ``votes`` counted (one per cluster), and how many of them were ``worse``.

    ``log_evidence`` is ln E now. ``alarm_at`` is the number of the vote at which E first exceeded 20, None if it never
    did. An alarm is not withdrawn by later votes.
    """

    votes: int
    worse: int
    log_evidence: float
    alarm_at: int | None


def watch(stream: Iterable[Vote], usual: float = 0.5) -> WatchResult:
    """Return the evidence of harm in a stream of votes, in order; deterministic.

    ``usual`` is the share of worse votes without harm: 0.5 for comparisons of two versions, the known failure rate for
    single requests. Raises ValueError if it is not between 0 and 1.
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
        # Only a worse vote increases the evidence, which is below 1 while the share of worse votes is at most usual.
        may_alarm = alarm_at is None and vote.worse and worse > usual * votes
        if may_alarm and log_evidence(worse, votes, usual) > math.log(ALARM):
            alarm_at = votes
    return WatchResult(votes, worse, log_evidence(worse, votes, usual), alarm_at)


def log_evidence(worse: int, votes: int, usual: float = 0.5) -> float:
    """Return ln E for ``worse`` of ``votes``: the bet is spread evenly over all shares above ``usual``."""
    log_beta = math.lgamma(worse + 1) + math.lgamma(votes - worse + 1) - math.lgamma(votes + 2)
    # The incomplete beta integral from ``usual`` to 1 equals the lower tail of a binomial.
    log_above = log_upper_tail(votes + 1 - worse, votes + 1, 1 - usual)
    log_bet = log_beta + log_above - math.log1p(-usual)
    return log_bet - worse * math.log(usual) - (votes - worse) * math.log1p(-usual)
