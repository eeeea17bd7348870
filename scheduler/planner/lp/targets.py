"""Targets: where and when the linear programme would have each job work, as a policy of the dispatcher.

Prices tell what is worth its hours; where several jobs are, targets tell which of them to start. Without them the
densest goes first, and takes hours of the only pool where another makes most of its speed.
"""

from __future__ import annotations

from scheduler.planner.lp.grid import Grid
from scheduler.planner.lp.linear import Programme
from scheduler.planner.lp.solver import Solution
from scheduler.planner.model.case import Case
from scheduler.planner.model.policy import PHASES

# A job goes before every other whose density is less than so many times its own.
BOOST = 16.0

Phased = dict[tuple[int, int, int], float]


def targets(case: Case, grid: Grid, programme: Programme, solution: Solution) -> Phased:
    """Return by (pool class, job, phase of the horizon) the factor of those that the programme has work there then.

    What it has in a span counts for every phase the span touches, if it makes at least the shortest useful session.
    """
    import numpy as np

    seconds: dict[tuple[int, int, int], float] = {}
    used = np.nonzero(solution.seconds > 1.0)[0]
    columns = zip(
        programme.job[used].tolist(),
        programme.market[used].tolist(),
        programme.span[used].tolist(),
        solution.seconds[used].tolist(),
        strict=True,
    )
    length = case.snapshot.horizon_seconds / PHASES
    for job, market, span, share in columns:
        first = int((grid.edges[span] - case.now) / length)
        last = int((min(grid.edges[span + 1], case.until) - 1 - case.now) / length)
        for phase in range(first, last + 1):
            key = (grid.markets[market].group, job, phase)
            seconds[key] = seconds.get(key, 0.0) + share
    boosted: Phased = {}
    for (group, job, phase), total in seconds.items():
        offer = case.classes[group].offers[job]
        if offer is not None and total >= offer.shortest(case.jobs[job].view.remaining_steps):
            boosted[group, job, phase] = BOOST
    return boosted
