"""How often verdicts are wrong: size and power of the default test, beside what else people use, and false alarms.

Two versions answer the same items; a share of what decides an item is the item's own, so that their answers go along
(correlation 0.7). In clustered sets the items of a cluster also share how a version does on them. Percent of runs.
"""

from __future__ import annotations

import argparse
import math
import time
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scheduler.judge.evidence import ALARM, ALPHA, POWER_80, clusters_of, half_samples, log_evidence, mcnemar, spread_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

BASE, CORRELATION = 0.60, 0.70
EFFECTS = (0.0, 0.03, 0.05, 0.08)
NORMAL = NormalDist()
Z_5 = NORMAL.inv_cdf(1 - ALPHA)


class Set(NamedTuple):
    """A test set: items, how many to a cluster, and the share of a version's own part that a cluster has in common."""

    items: int
    per_cluster: int
    shared: float


SETS = (Set(164, 1, 0), Set(164, 4, 0.5), Set(400, 8, 0.5), Set(1_000, 1, 0), Set(1_000, 10, 0), Set(1_000, 10, 0.5))


def answers(test_set: Set, effect: float, generator: np.random.Generator) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Return which items the version in force and the new one pass, whose true share is higher by ``effect``."""
    count, per_cluster, shared = test_set
    clusters = math.ceil(count / per_cluster)
    common = generator.standard_normal(count) * math.sqrt(CORRELATION)
    found = []
    for share in (BASE, BASE + effect):
        of_cluster = np.repeat(generator.standard_normal(clusters), per_cluster)[:count]
        own = math.sqrt(shared) * of_cluster + math.sqrt(1 - shared) * generator.standard_normal(count)
        found.append((common + math.sqrt(1 - CORRELATION) * own < NORMAL.inv_cdf(share)).astype(np.int8))
    return found[0], found[1]


def by_default(gains: list[tuple[str, float]], per_cluster: int) -> bool:
    """Decide as the gate ``better`` does."""
    if per_cluster == 1:
        return by_items(gains)
    return half_samples(clusters_of(gains)).p_above() <= ALPHA


def by_items(gains: list[tuple[str, float]]) -> bool:
    """Decide by McNemar's test, as if all items were independent."""
    return mcnemar(sum(gain > 0 for _, gain in gains), sum(gain < 0 for _, gain in gains)) <= ALPHA


def unpaired(before: NDArray[np.int8], after: NDArray[np.int8]) -> bool:
    """Decide by two shares, as if they were of different items."""
    first, second = float(before.mean()), float(after.mean())
    error = math.sqrt((first * (1 - first) + second * (1 - second)) / len(before))
    return second - first > Z_5 * error


def decisions(runs: int, generator: np.random.Generator) -> None:
    """Print the share of runs in which each test promotes."""
    print("Promoted, %; a version that is no better should be in 5 at most. McN: McNemar over items. z: unpaired.")
    print(f"{'items':>6} {'x':>3} {'d.eff.':>6} {'80 % at':>8} | default test {'':23} | McN {'':13} | z")
    heads = "  ".join(f"+{effect * 100:.0f} pt" for effect in EFFECTS)
    print(f"{'':27} | {heads}  size/5 |   +0    +5  /5 |   +0    +5  /5")
    for test_set in SETS:
        rates = {}
        effects, smallest = [], []
        for effect in EFFECTS:
            promoted = [0, 0, 0]
            for _ in range(runs):
                before, after = answers(test_set, effect, generator)
                gains = [
                    (f"{place // test_set.per_cluster:06}", float(gain)) for place, gain in enumerate(after - before)
                ]
                promoted[0] += by_default(gains, test_set.per_cluster)
                promoted[1] += by_items(gains)
                promoted[2] += unpaired(before, after)
                if not effect:
                    spread = spread_of(gains)
                    effects.append(spread.design_effect)
                    smallest.append(POWER_80 * (spread.error or 0.0))
            rates[effect] = [100 * count / runs for count in promoted]
        own = "  ".join(f"{rates[effect][0]:5.1f}" for effect in EFFECTS)
        others = " | ".join(
            f"{rates[0.0][place]:5.1f} {rates[0.05][place]:5.1f} {rates[0.0][place] / 5:3.1f}" for place in (1, 2)
        )
        shown = f"{np.mean(effects):6.2f} {100 * np.mean(smallest):5.1f} pt"
        print(f"{test_set.items:6} {test_set.per_cluster:3} {shown} | {own}  {rates[0.0][0] / 5:6.1f} | {others}")


def margins(runs: int, generator: np.random.Generator) -> None:
    """Print how often an equal version is shown to be not worse by a margin."""
    print("\nEqual versions that pass not_worse, %: why a margin of one point is none for sets like ours.")
    for items in (400, 1_000):
        passed = dict.fromkeys((0.01, 0.03, 0.05), 0)
        for _ in range(runs):
            before, after = answers(Set(items, 4, 0), 0.0, generator)
            gains = [(f"{place // 4:06}", float(gain)) for place, gain in enumerate(after - before)]
            halves = half_samples(clusters_of(gains))
            for margin in passed:
                passed[margin] += halves.p_above(-margin) <= ALPHA
        print(f"{items:6} items: " + ", ".join(f"{100 * m:.0f} pt {100 * n / runs:.0f}" for m, n in passed.items()))


def alarms(runs: int, generator: np.random.Generator) -> None:
    """Print how often a watch that is looked at after every pair alarms although nothing is wrong."""

    def first(losses: NDArray[np.bool_], alarmed: Callable[[int, int], bool]) -> int | None:
        worse = 0
        for place, lost in enumerate(losses.tolist(), 1):
            worse += lost
            if alarmed(worse, place):
                return place
        return None

    def evidence(worse: int, pairs: int) -> bool:
        return log_evidence(worse, pairs) > math.log(ALARM)

    def naive(worse: int, pairs: int) -> bool:
        return pairs >= 20 and (2 * worse - pairs) / math.sqrt(pairs) > Z_5

    print("\nWatch over 1,500 pairs, looked at after each; alarms although nothing is wrong, %, should be 5 at most")
    fair = [generator.random(1_500) < 0.5 for _ in range(runs)]
    # Eight pairs of a cluster mostly go one way.
    common = [np.repeat(generator.random(188) < 0.5, 8)[:1_500] for _ in range(runs)]
    tied = [np.where(generator.random(1_500) < 0.7, whole, generator.random(1_500) < 0.5) for whole in common]
    rows: tuple[tuple[str, list[NDArray[np.bool_]], Callable[[int, int], bool]], ...] = (
        ("e-process", fair, evidence),
        ("z at 5 %", fair, naive),
        ("e-process, clusters of 8, one vote each", [votes[::8] for votes in tied], evidence),
        ("e-process, clusters of 8, every pair", tied, evidence),
    )
    for name, streams, alarmed in rows:
        false = 100 * sum(first(stream, alarmed) is not None for stream in streams) / runs
        print(f"{name:>42}: {false:5.1f}, {false / 5:3.1f} times what it should be")
    for share in (0.55, 0.6, 0.7):
        seen = [first(generator.random(1_500) < share, evidence) or 10**6 for _ in range(runs)]
        median = int(np.median(seen))
        shown = f"{median:,} pairs" if median < 10**6 else "not within 1,500"
        print(f"{f'{share:.0%} of pairs lost':>42}: median {shown} until the alarm")


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=400, help="runs of each cell (%(default)s)")
    options = parser.parse_args()
    began = time.perf_counter()
    generator = np.random.default_rng(16)
    decisions(options.runs, generator)
    margins(options.runs, generator)
    alarms(options.runs, generator)
    error = 100 * math.sqrt(ALPHA * (1 - ALPHA) / options.runs)
    print(f"\n{options.runs} runs a cell: 5 % is known to {error:.1f} points. {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
