"""Targets: the pool class and time at which the linear programme runs each job, as factors for the dispatcher.

Prices decide which sessions are worth their hours; targets decide which of several such jobs starts. Without targets
the densest job goes first, and may use the only pool on which another job is fast.
"""

from __future__ import annotations

from scheduler.planner.lp.grid import Grid
from scheduler.planner.lp.linear import Programme
from scheduler.planner.lp.solver import Solution
from scheduler.planner.model.case import Case
from scheduler.planner.model.policy import PHASES

# A targeted job precedes every other job of less than this many times its density.
BOOST = 16.0

Phased = dict[tuple[int, int, int], float]


def targets(case: Case, grid: Grid, programme: Programme, solution: Solution) -> Phased:
    """Return the factors of the jobs that the programme runs, by (pool class, job, phase of the horizon).

    The seconds of a span count in every phase that it overlaps. A phase with less than the shortest useful session has
    no target.
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
