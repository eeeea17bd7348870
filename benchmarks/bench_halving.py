"""Successive halving against a plain grid and random search on generated learning curves; exits with 1 above a limit.

    python benchmarks/bench_halving.py [--problems 20] [--seed 1]

A problem is a grid of 27 candidates, nine learning rates with three weight decays. A curve is a power law that falls to
a floor. As in LCBench (Zimmer et al. 2021), higher learning rates fall faster at first and end at a higher floor, so
curves cross, and evaluations are noisy. The hours of a search end when it knows a candidate within 1 % of the grid's
best. A search that does not find one is charged the whole grid in addition. The decisions are those of
scheduler.core.halving, made while four workers train, each session with a set-up.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from heapq import heappop, heappush
from math import exp, log10
from random import Random
from statistics import fmean

from jobs.spec import Halving
from scheduler.core.halving import SweepCandidate, decide, rungs_of

FACTOR, STEPS, HOURS = 3, 8_100, 3.0  # of one candidate that trains to the end
SETUP_HOURS, WORKERS, SPARE = 0.05, 4, 1.2
RATES, DECAYS = [10 ** (-5 + 0.5 * number) for number in range(9)], [0.0, 0.01, 0.1]
WITHIN, RATIO_MAX = 0.01, 1 / 3
_DRAWS = 200  # orders of random search


@dataclass(frozen=True, slots=True)
class Curve:
    """The held-out loss of one candidate: its floor, the height above it at the start, and how fast that falls."""

    floor: float
    height: float
    power: float
    noise: int

    def loss(self, step: int) -> float:
        """Return what an evaluation at a step gives, always the same."""
        smooth: float = self.floor + self.height * (1 + step / 30) ** -self.power
        return float(smooth * exp(Random(f"{self.noise} {step}").gauss(0, 0.004)))


@dataclass(frozen=True, slots=True)
class Search:
    """What a search used until it knew a candidate that is good enough, and in all; ``found`` says whether it did."""

    hours: float
    total: float
    found: bool


def problem(rng: Random) -> list[Curve]:
    """Return the curves of a grid in its order: what is best, and how much it matters, differs between problems."""
    best, curvature, floor = rng.gauss(-3.0, 0.6), rng.uniform(0.03, 0.12), rng.uniform(0.3, 2.5)
    curves = []
    for rate in RATES:
        for decay in DECAYS:
            off = log10(rate) - best
            end = floor * (1 + curvature * off**2 + rng.uniform(0, 0.02) + 0.05 * abs(decay - 0.01))
            power = max(0.15, rng.gauss(0.9, 0.06) + 0.18 * min(off, 1.0))  # faster at higher rates, until they diverge
            curves.append(Curve(end, floor * rng.uniform(1.5, 2.5), power, rng.getrandbits(60)))
    return curves


def halve(curves: list[Curve], good: float) -> tuple[Search, float]:
    """Run a sweep that is halved and return its hours, and its budget."""
    rungs = rungs_of(STEPS, len(curves), FACTOR)
    counts = [len(curves) // FACTOR**level for level in range(len(rungs))]
    spans = [after - before for before, after in zip((0, *rungs), rungs, strict=False)]
    needed = sum(count * (SETUP_HOURS + HOURS * span / STEPS) for count, span in zip(counts, spans, strict=True))
    rule = Halving("loss", round(SPARE * needed * 3_600), len(curves), rungs, FACTOR)
    rung, state = [0] * len(curves), ["trains"] * len(curves)
    queue, running, now, used, reached = list(range(len(curves))), list[tuple[float, int]](), 0.0, 0.0, None
    while queue or running:
        while queue and len(running) < WORKERS:
            one = queue.pop(0)
            hours = SETUP_HOURS + HOURS * spans[rung[one]] / STEPS
            used += hours
            heappush(running, (now + hours, one))
        now, one = heappop(running)
        state[one] = "waits"
        if rung[one] == len(rungs) - 1 and reached is None and curves[one].loss(STEPS) <= good:
            reached = used
        decision = decide(
            rule,
            [
                SweepCandidate(f"{number:03}", rung[number], state[number], curve.loss(rungs[rung[number]]))  # type: ignore[arg-type]
                for number, curve in enumerate(curves)
            ],
        )
        for name in decision.promoted:
            rung[int(name)] += 1
            state[int(name)] = "trains"
            queue.insert(0, int(name))
        for name in decision.dropped:
            state[int(name)] = "out"
    return Search(used if reached is None else reached, used, reached is not None), rule.budget_seconds / 3_600


def in_order(curves: list[Curve], order: list[int], good: float) -> float:
    """Return the hours until candidates that train to the end in this order include one that is good enough."""
    first = next(place for place, one in enumerate(order, 1) if curves[one].loss(STEPS) <= good)
    return first * (HOURS + SETUP_HOURS)


def rank_correlation(curves: list[Curve]) -> float:
    """Return Spearman's correlation of the losses at the first rung and at the end."""
    ranks = []
    for step in (rungs_of(STEPS, len(curves), FACTOR)[0], STEPS):
        order = sorted(range(len(curves)), key=lambda one, at=step: curves[one].loss(at))  # type: ignore[misc]
        ranks.append({one: place for place, one in enumerate(order)})
    count = len(curves)
    return 1 - 6 * sum((ranks[0][one] - ranks[1][one]) ** 2 for one in range(count)) / (count * (count**2 - 1))


def main() -> int:
    """Compare the searches on all problems; 1 when halving needs too many hours or more than its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rows, over = [], 0
    for number in range(arguments.problems):
        rng = Random(f"{arguments.seed} {number}")
        curves = problem(rng)
        grid = len(curves) * (HOURS + SETUP_HOURS)
        good = min(curve.loss(STEPS) for curve in curves) * (1 + WITHIN)
        search, budget = halve(curves, good)
        over += search.total > budget
        needed = search.hours + (0 if search.found else grid)
        orders = [rng.sample(range(len(curves)), len(curves)) for _ in range(_DRAWS)]
        random = fmean(in_order(curves, order, good) for order in orders)
        rows.append((needed / grid, random / grid, search.total / budget, search.found, rank_correlation(curves)))
        print(
            f"problem {number:2}: grid {grid:5.1f} h, halving {needed:5.1f} h ({search.total:.1f} of {budget:.1f} h), "
            f"random {random:5.1f} h, ranks {rows[-1][4]:+.2f}{'' if search.found else ', not found'}"
        )
    halving, random, part = (fmean(row[column] for row in rows) for column in range(3))
    print(f"halving_of_grid {halving:.3f} (at most {RATIO_MAX:.3f}), random_of_grid {random:.3f}")
    print(
        f"found {sum(row[3] for row in rows)} of {len(rows)}, ranks_at_first_rung {fmean(row[4] for row in rows):.2f}"
    )
    print(f"used_of_budget {part:.3f}, above_budget {over} (at most 0)")
    return int(halving > RATIO_MAX or over > 0)


if __name__ == "__main__":
    raise SystemExit(main())
