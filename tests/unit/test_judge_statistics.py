"""The arithmetic behind verdicts, against values that are known otherwise."""

import math
import random
from itertools import product

import pytest

from jobs.payload.scorers.kappa import kappa_of
from jobs.scores import Vote
from scheduler.judge.evidence import (
    RESAMPLES,
    SINGLE_MAX,
    Cluster,
    clusters_of,
    half_samples,
    log_evidence,
    log_upper_tail,
    lower_bound,
    mcnemar,
    spread_of,
    upper_tail,
    watch,
)


@pytest.mark.parametrize("trials", [1, 7, 40])
@pytest.mark.parametrize("chance", [0.02, 0.5, 0.9])
def test_tails_are_sums_of_terms(trials: int, chance: float) -> None:
    for count in range(trials + 2):
        terms = (math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(count, trials + 1))
        assert upper_tail(count, trials, chance) == pytest.approx(math.fsum(terms), rel=1e-10, abs=1e-300)


def test_tails_stay_exact_where_numbers_end() -> None:
    assert log_upper_tail(5_000, 5_000, 0.5) == pytest.approx(-5_000 * math.log(2))
    assert upper_tail(500_000, 1_000_000, 0.5) == pytest.approx(0.5, abs=1e-3)
    assert log_upper_tail(1, 3, 0.0) == -math.inf


def test_bounds_and_the_exact_test_are_those_of_the_books() -> None:
    assert lower_bound(99, 100) == pytest.approx(0.9534, abs=1e-4)
    assert lower_bound(59, 59) == pytest.approx(0.05 ** (1 / 59), abs=1e-9)
    assert lower_bound(0, 10) == 0.0
    assert mcnemar(10, 2) == pytest.approx(79 / 4096)
    assert mcnemar(0, 0) == 1.0


def test_half_samples_are_the_sign_flip_test() -> None:
    """Counted by flipping every sign: the share of flips with a sum as large as the one seen."""
    generator = random.Random(11)
    clusters = [Cluster(generator.gauss(0.4, 1), generator.randint(1, 4)) for _ in range(9)]
    for shift in (-0.3, 0.0, 0.2):
        centred = [cluster.total - shift * cluster.items for cluster in clusters]
        sums = [
            sum(sign * value for sign, value in zip(signs, centred, strict=True))
            for signs in product((1, -1), repeat=len(centred))
        ]
        as_large = sum(1 for value in sums if value >= sum(centred) - 1e-9) / len(sums)
        as_small = sum(1 for value in sums if value <= sum(centred) + 1e-9) / len(sums)
        halves = half_samples(clusters)
        assert halves.p_above(shift) == pytest.approx(as_large)
        assert halves.p_below(shift) == pytest.approx(as_small)


@pytest.mark.parametrize("count", [8, 60])
def test_the_interval_ends_where_the_test_does(count: int) -> None:
    generator = random.Random(count)
    halves = half_samples([Cluster(generator.gauss(0.5, 1), 2) for _ in range(count)])
    interval = halves.interval()
    assert interval is not None
    low, high = interval
    width = high - low
    assert halves.p_above(low - 0.001 * width) <= 0.05 < halves.p_above(low + 0.001 * width)
    assert halves.p_below(high + 0.001 * width) <= 0.05 < halves.p_below(high - 0.001 * width)


def test_four_clusters_have_no_interval() -> None:
    assert half_samples([Cluster(1.0, 1)] * 4).interval() is None
    assert half_samples([Cluster(1.0, 1)] * 5).p_above() == 1 / 32


def test_very_many_clusters_are_joined_and_judged_all_the_same() -> None:
    generator = random.Random(2)
    halves = half_samples([Cluster(generator.gauss(0.1, 1), 1) for _ in range(SINGLE_MAX * 3)])
    assert halves.choices == RESAMPLES + 1
    assert halves.p_above() == 1 / (RESAMPLES + 1)
    assert halves.p_above(0.1) == pytest.approx(0.5, abs=0.45)


def test_the_design_effect_says_what_clustered_items_are_worth() -> None:
    """Copies of one item in clusters of five are worth a fifth; independent ones are worth themselves."""
    generator = random.Random(8)
    drawn = [float(generator.random() < 0.4) for _ in range(4_000)]
    copied = spread_of([(f"c{place}", value) for place, value in enumerate(drawn[:800]) for _ in range(5)])
    alone = spread_of([(f"c{place // 5}", value) for place, value in enumerate(drawn)])
    assert copied.design_effect == pytest.approx(5, rel=0.01)
    assert alone.design_effect == pytest.approx(1, abs=0.15)
    assert alone.error == pytest.approx(math.sqrt(0.24 / 4_000), rel=0.1)
    assert alone.smallest_effect == pytest.approx(2.4865 * (alone.error or 0), rel=1e-4)


def test_the_figures_of_a_small_set_are_those_worked_out_by_hand() -> None:
    """Two clusters of two: variance of items 1/3, of their mean over clusters 2/1 * 2/16 = 1/4."""
    spread = spread_of([("a", 1.0), ("a", 1.0), ("b", 0.0), ("b", 0.0)])
    assert (spread.items, spread.clusters, spread.mean, spread.differing) == (4, 2, 0.5, 0.5)
    assert spread.error == pytest.approx(0.5)
    assert spread.design_effect == pytest.approx(3.0)


def test_where_nothing_differs_nothing_is_claimed() -> None:
    spread = spread_of([("a", 0.0), ("a", 0.0), ("b", 0.0)])
    assert (spread.mean, spread.differing, spread.error, spread.smallest_effect) == (0.0, 0.0, None, None)
    assert clusters_of([("b", 1.0), ("a", 2.0), ("b", 3.0)]) == (Cluster(2.0, 1), Cluster(4.0, 2))


def test_evidence_is_the_mean_of_bets() -> None:
    """E is the likelihood ratio, averaged over all shares above the usual one, here summed on a fine grid."""
    for worse, votes, usual in ((7, 10, 0.5), (4, 20, 0.1), (0, 6, 0.5)):
        steps = 200_000
        width = (1 - usual) / steps
        shares = (usual + (place + 0.5) * width for place in range(steps))
        ratios = ((p / usual) ** worse * ((1 - p) / (1 - usual)) ** (votes - worse) for p in shares)
        assert log_evidence(worse, votes, usual) == pytest.approx(math.log(math.fsum(ratios) / steps), abs=1e-6)


def test_an_alarm_stands_and_a_cluster_has_one_vote() -> None:
    bad = [Vote(f"c{place}", worse=True) for place in range(10)]
    good = [Vote(f"g{place}", worse=False) for place in range(200)]
    seen = watch([*bad, *good])
    assert seen.alarm_at == 7
    assert seen.log_evidence < 0
    assert (seen.votes, seen.worse) == (210, 10)
    repeated = watch([Vote("c0", worse=True)] * 500)
    assert (repeated.votes, repeated.alarm_at) == (1, None)
    with pytest.raises(ValueError, match="usual share of 1"):
        watch([], usual=1)


def test_kappa_is_agreement_beyond_chance() -> None:
    found = kappa_of([[20, 5], [10, 15]])
    assert found.kappa == pytest.approx(0.4)
    assert found.lower == pytest.approx(0.4 - 1.6449 * 0.1276, abs=2e-3)
    assert kappa_of([[50, 0], [0, 0]]).kappa is None
    assert kappa_of([]).labels == 0


def test_the_bound_of_kappa_is_rarely_above_the_truth() -> None:
    """Simulated: two who agree as far as a common truth goes; kappa of the population is 0.64."""
    generator = random.Random(4)
    above = 0
    for _ in range(400):
        table = [[0, 0], [0, 0]]
        for _ in range(200):
            truth = generator.random() < 0.5
            first, second = (truth if generator.random() < 0.9 else not truth for _ in range(2))
            table[first][second] += 1
        lower = kappa_of(table).lower
        above += lower is not None and lower > 0.64
    assert 0.02 < above / 400 < 0.09


def test_the_arithmetic_is_that_of_scipy() -> None:
    """An oracle in the tests alone: sums of a thousand terms need no library of 100 MB in every daemon."""
    stats, special = pytest.importorskip("scipy.stats"), pytest.importorskip("scipy.special")
    generator = random.Random(7)
    for _ in range(300):
        trials = generator.choice([3, 40, 700, 20_000])
        count, chance = generator.randint(0, trials), generator.choice([0.01, 0.3, 0.5, 0.97])
        expected = float(stats.binom.logsf(count - 1, trials, chance))
        if expected > -600:
            assert log_upper_tail(count, trials, chance) == pytest.approx(expected, rel=1e-8, abs=1e-10)
        interval = stats.binomtest(count, trials, alternative="greater").proportion_ci(0.95, method="exact")
        assert lower_bound(count, trials) == pytest.approx(float(interval.low), abs=1e-9)
    for worse, votes, usual in ((60, 100, 0.5), (3, 50, 0.1), (90, 100, 0.5)):
        above = math.log(float(special.betaincc(worse + 1, votes - worse + 1, usual)))
        beta = float(special.betaln(worse + 1, votes - worse + 1))
        bet = -math.log1p(-usual) - worse * math.log(usual) - (votes - worse) * math.log1p(-usual) + beta + above
        assert log_evidence(worse, votes, usual) == pytest.approx(bet, abs=1e-9)


def test_half_samples_are_scipys_permutation_test() -> None:
    stats = pytest.importorskip("scipy.stats")
    generator = random.Random(21)
    values = [generator.gauss(0.3, 1) for _ in range(12)]
    found = stats.permutation_test((values,), math.fsum, permutation_type="samples", alternative="greater")
    assert half_samples([Cluster(value, 1) for value in values]).p_above() == pytest.approx(float(found.pvalue))
