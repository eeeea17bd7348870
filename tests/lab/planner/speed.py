"""Speed: how fast the search steps, and how long people wait for a small plan; all in the processor's time.

The planner uses one thread, so that its seconds are the clock's on a machine with nothing else to do, and hold on a
busy one. What another thread of the solver does after its first run, which is to look for work for a tenth of a second,
nobody waits for.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import patch

from scheduler.core.snapshot import PoolView, Rate, Snapshot
from scheduler.planner.dispatch import dispatcher
from scheduler.planner.lp.grid import make_grid
from scheduler.planner.lp.prices import scarcity_prices
from scheduler.planner.model.case import make_case
from scheduler.planner.model.policy import PLAIN
from scheduler.planner.model.urgency import with_urgency
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.planner.search.rebuild import ScoredSchedule, rebuild
from scheduler.planner.search.score import score
from tests.lab.planner.cases import LOCAL, SMALL_MIX, make_pools, random_case, seed_case
from tests.lab.planner.plain_walk import PlainWalk

if TYPE_CHECKING:
    from scheduler.core.plan import Plan

STEPS, PLAIN_STEPS = 400, 8
REPEATS = 7


def steps() -> tuple[float, float]:
    """Return steps a second of the walk over schedules at 50 x 6, and how many times the plain walk's that is."""
    reached = _stepped(PLAIN_STEPS)[1]
    with patch.object(dispatcher, "Walk", PlainWalk):
        plain, plainly = _stepped(PLAIN_STEPS)
    if plainly != reached:
        raise AssertionError(f"the walks differ: {reached} and {plainly}")
    fast = _stepped(STEPS)[0]
    return fast, fast / plain


def _stepped(count: int) -> tuple[float, float]:
    """Return steps a second and the value reached."""
    case = make_case(random_case(50, make_pools(SMALL_MIX), 0), firm_deadlines=False)
    prices = scarcity_prices(case, make_grid(case))
    schedule = dispatcher.make_schedule(case)
    started = time.thread_time()
    found = rebuild(case, ScoredSchedule(schedule, score(case, schedule)), PLAIN, prices, count)
    return count / (time.thread_time() - started), found.score.value


def family() -> Snapshot:
    """The seeds' main and managers, behind its gate, on Kaggle, SageMaker and a desk, as the daemon asks."""
    week = seed_case(1, gated=True)
    jobs = tuple(
        replace(
            job,
            rates={**job.rates, LOCAL.name: Rate(0.9)},
            setup_seconds={**job.setup_seconds, LOCAL.name: 900},
            checkpoint_seconds=dict.fromkeys([*job.rates, LOCAL.name], 60),
        )
        for job in week.jobs
    )
    return with_urgency(replace(week, jobs=jobs, pools=(*week.pools, PoolView(LOCAL))))


def warm_ms(options: PlannerOptions, repeats: int = REPEATS) -> float:
    """Return the least milliseconds of planning the family again, ten minutes later each time."""
    week, planner = family(), Planner(options)
    plan: Plan = planner.plan(week)
    spent = []
    for number in range(1, repeats + 1):
        later = replace(week, now=week.now + 600 * number)
        started = time.thread_time()
        plan = planner.plan(later, plan)
        spent.append(time.thread_time() - started)
    return min(spent) * 1e3


def speed() -> dict[str, float]:
    """Steps a second, and warm plans of seven jobs on three pools, quick and polished."""
    per_second, ratio = steps()
    polished = PlannerOptions()
    return {
        "steps_per_second": per_second,
        "steps_over_plain": ratio,
        "quick_ms": warm_ms(replace(polished, search_steps=0)),
        "polish_ms": warm_ms(polished, 3),
    }
