"""Search effort: the number of local search steps (``rebuild.py``) for a case.

It follows from the size of the case, never from a clock, so that the same input gives the same plan.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.window import WEEK
from scheduler.planner.lp.prices import Prices
from scheduler.planner.model.case import Case
from scheduler.planner.search.candidates import Candidate
from scheduler.planner.search.rebuild import ScoredSchedule, rebuild

STEPS_MAX = 400
SEARCHED_JOBS_MAX = 300
# Rebuilds of the schedule per step. A plan of few jobs converges early.
REBUILDS, REBUILDS_OF_FEW = 9.0, 0.9
TRIES = 3
FEW_JOBS = 20
# A limit of jobs x classes x steps; about three seconds.
EFFORT = 120_000


def steps_for(case: Case) -> int:
    """Return the number of search steps for ``case``; 0 with very many jobs, where a step gains next to nothing."""
    if len(case.jobs) > SEARCHED_JOBS_MAX:
        return 0
    longest = STEPS_MAX * 2 * WEEK // max(2 * WEEK, case.snapshot.horizon_seconds)  # a step costs a whole walk
    return min(longest, EFFORT // max(1, len(case.jobs) * len(case.classes)))


def improve(case: Case, start: Candidate, prices: Prices, steps: int) -> Candidate:
    """Return the best candidate that ``steps`` seeded steps from ``start`` find."""
    if len(case.jobs) < 2 or steps <= 0:
        return start
    few = len(case.jobs) <= FEW_JOBS
    rebuilds, tries = (int(steps * REBUILDS_OF_FEW), 1) if few else (int(steps * REBUILDS), TRIES)
    best = rebuild(case, ScoredSchedule(start.schedule, start.score), start.policy, prices, rebuilds, tries)
    return replace(start, schedule=best.schedule, score=best.score)
