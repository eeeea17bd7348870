"""Search: how many rebuilds of a plan a case deserves, and what is left of them (``rebuild.py``).

The number of steps is fixed by the size of the case, never by a clock: the same input gives the same plan.
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
# What a step buys: so many rebuilds of the schedule. A plan of few jobs is soon as good as it gets.
REBUILDS, REBUILDS_OF_FEW = 9.0, 0.9
TRIES = 3
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
    rebuilds, tries = (int(steps * REBUILDS_OF_FEW), 1) if few else (int(steps * REBUILDS), TRIES)
    best = rebuild(case, ScoredSchedule(start.schedule, start.score), start.policy, prices, rebuilds, tries)
    return replace(start, schedule=best.schedule, score=best.score)
