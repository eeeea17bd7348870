"""Search: a seeded walk over dispatch policies. Bends a few densities or a price, plans again, keeps what is no worse.

What it finds is then rebuilt job by job (``rebuild.py``), which costs less a step and disturbs less of the plan.

The number of steps is fixed by the size of the case, never by a clock: the same input gives the same plan.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp
from random import Random
from typing import TYPE_CHECKING

from scheduler.core.window import WEEK
from scheduler.planner.model.policy import PHASES
from scheduler.planner.search.candidates import Bids, attempt
from scheduler.planner.search.rebuild import Found, rebuild

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.planner.lp.prices import Prices
    from scheduler.planner.model.case import Case
    from scheduler.planner.model.policy import Policy
    from scheduler.planner.search.candidates import Candidate

PRICE_FACTORS = (0.0, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05)
PATIENCES = (0.0, 0.8, 1.0)
STEPS_MAX = 400
SEARCHED_JOBS_MAX = 300
# What a step buys: so many bends of the policy and rebuilds of the schedule. A plan of few jobs is soon as good as it
# gets, and bending gets it there last.
BENDS, REBUILDS = 0.45, 8.6
TRIES = 3
BENDS_OF_FEW, REBUILDS_OF_FEW = 0.03, 0.88
FEW_JOBS = 20
# A step costs about a microsecond per job and pool class; this buys three seconds.
EFFORT = 120_000


def steps_for(case: Case) -> int:
    """Return how many steps a case of this size deserves; with very many jobs a step moves nothing that matters."""
    if len(case.jobs) > SEARCHED_JOBS_MAX:
        return 0
    longest = STEPS_MAX * 2 * WEEK // max(2 * WEEK, case.snapshot.horizon_seconds)  # a step walks the whole horizon
    return min(longest, EFFORT // max(1, len(case.jobs) * len(case.classes)))


def improve(case: Case, start: Candidate, prices: Prices, steps: int) -> Candidate:
    """Return the best candidate that ``steps`` seeded steps from ``start`` come across."""
    if len(case.jobs) < 2 or steps <= 0:
        return start
    few = len(case.jobs) <= FEW_JOBS
    best = _bent(case, start, prices, int(steps * (BENDS_OF_FEW if few else BENDS)))
    rebuilds = int(steps * (REBUILDS_OF_FEW if few else REBUILDS))
    tries = 1 if few else TRIES
    found = rebuild(case, Found(best.schedule, best.score), best.policy, prices, rebuilds, tries)
    return replace(best, schedule=found.schedule, score=found.score)


def _bent(case: Case, start: Candidate, prices: Prices, steps: int) -> Candidate:
    rng = Random(1)
    options = [
        (group, job)
        for group, found in enumerate(case.classes)
        for job, offer in enumerate(found.offers)
        if offer is not None and case.jobs[job].startable
    ]
    if not options:
        return start
    best = start
    for _ in range(steps):
        policy, bids = _bend(rng, best, options)
        found = attempt(case, policy, bids, prices)
        if found.score.on_time >= best.score.on_time and found.score.gain >= best.score.gain:
            best = found
    return best


def _bend(rng: Random, best: Candidate, options: Sequence[tuple[int, int]]) -> tuple[Policy, Bids]:
    densities, phased = dict(best.policy.factors), dict(best.policy.phased)
    prices = list(best.bids.price_factors)
    patience = best.bids.patience
    for _ in range(rng.choice((1, 1, 2, 3))):
        dice = rng.random()
        if dice < 0.2:
            prices[rng.randrange(len(prices))] = rng.choice(PRICE_FACTORS)
        elif dice < 0.25:
            patience = rng.choice(PATIENCES)
        else:
            group, job = rng.choice(options)
            if rng.random() < 0.5:
                densities[group, job] = densities.get((group, job), 1.0) * exp(rng.gauss(0.0, 0.6))
            else:
                when = (group, job, rng.randrange(PHASES))
                phased[when] = phased.get(when, 1.0) * exp(rng.gauss(0.0, 0.8))
    return replace(best.policy, factors=densities, phased=phased), Bids(tuple(prices), patience)
