"""Never below a simple order: none meets as many deadlines and makes more value, and none makes much more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.nouns.window import DAY, WEEK
from scheduler.core.plan import Plan
from scheduler.core.snapshot import PoolView, Snapshot
from scheduler.planner.dispatch.dispatcher import make_schedule
from scheduler.planner.dispatch.orders import ORDERS, in_order
from scheduler.planner.model.case import make_case
from scheduler.planner.model.policy import PLAIN, PlanPolicy, Schedule
from scheduler.planner.model.value import value
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.planner.search.candidates import DEADLINES_COST, Bids, Candidate, Floor, choose
from scheduler.planner.search.deadlines import FIRM_JOBS_MAX
from scheduler.planner.search.score import PlanScore, jobs_on_time
from scheduler.planner.verify import verify
from tests.lab.planner.cases import EPOCH, KAGGLE
from tests.lab.planner.small import job
from tests.lab.planner.synthetic import KINDS, Kind, synthetic
from tests.lab.planner.trace import on_our_pools

QUICK = PlannerOptions(search_steps=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("count", "seed"), [(80, 0), (80, 3), (300, 1)])
def test_no_plan_of_a_trace_is_below_a_simple_order(kind: Kind, count: int, seed: int) -> None:
    snapshot = on_our_pools(synthetic(kind, count, seed), count)
    case = make_case(snapshot)
    orders = {name: make_schedule(case, in_order(name)) for name in ORDERS} | {"density": make_schedule(case, PLAIN)}
    plan = Planner(QUICK).plan(snapshot)
    assert verify(snapshot, plan) == []
    assert plan.warnings == ()
    on_time = len(jobs_on_time(case, Schedule(plan.placements, {})))
    for name, found in orders.items():
        worth = value(snapshot, found.placements)
        assert plan.value >= worth * (1 - DEADLINES_COST), name
        assert plan.value >= worth * (1 - 1e-9) or on_time > len(jobs_on_time(case, found)), name


def candidate(on_time: int, worth: float) -> Candidate:
    return Candidate(PlanPolicy(), Bids(()), Schedule((), {}), PlanScore(on_time, worth, 0.0))


FEW, MANY = FIRM_JOBS_MAX, FIRM_JOBS_MAX + 1


@pytest.mark.parametrize(
    ("jobs", "floor", "scores", "chosen"),
    [
        # Among few jobs deadlines come first, whatever they cost.
        (FEW, None, [(20, 60.0), (5, 100.0), (20, 61.0), (19, 99.0)], (20, 61.0)),
        (FEW, Floor(5, 100.0), [(20, 60.0), (5, 100.0)], (20, 60.0)),
        # Among more they may cost three tenths of the most value, and no more.
        (MANY, None, [(20, 60.0), (5, 100.0), (7, 70.1), (7, 70.0), (9, 69.9)], (7, 70.1)),
        (MANY, Floor(20, 90.0), [(20, 60.0), (5, 100.0), (7, 70.0)], (7, 70.0)),
        # Where work is worth more after the horizon, what is lost is counted alike.
        (MANY, None, [(1, -100.0), (2, -129.0), (3, -131.0)], (2, -129.0)),
        # Of ten one may be given up for value.
        (MANY, None, [(20, 90.0), (18, 100.0), (17, 110.0)], (18, 100.0)),
        # As many as earliest deadline first meets, before the value of the best order; of those that reach both, most.
        (MANY, Floor(10, 90.0), [(9, 110.0), (10, 80.0), (20, 79.0)], (20, 79.0)),
        (MANY, Floor(10, 90.0), [(9, 110.0), (10, 95.0), (12, 91.0), (20, 80.0)], (12, 91.0)),
    ],
)
def test_which_candidate_is_chosen(
    jobs: int, floor: Floor | None, scores: list[tuple[int, float]], chosen: tuple[int, float]
) -> None:
    queue = tuple(job(f"j{number}", 1, 1) for number in range(jobs))
    case = make_case(Snapshot(EPOCH, queue, (PoolView(KAGGLE),), WEEK))
    assert choose(case, [candidate(*one) for one in scores], floor).score[:2] == chosen


@pytest.mark.parametrize("weights", [(1, 2, 4, 8, 3), (8, 1, 1, 1, 2), (3, 5, 1, 9, 4)])
def test_of_what_is_worth_as_much_heavy_jobs_end_first(weights: tuple[int, ...]) -> None:
    """An hour is worth the same all day, and the search goes from plan to plan of the same value."""
    jobs = tuple(replace(job(f"j{n}", weight, 2), position=n) for n, weight in enumerate(weights))
    snapshot = Snapshot(EPOCH, jobs, (PoolView(replace(KAGGLE, sessions_max=1)),), WEEK)
    plan = Planner(PlannerOptions()).plan(snapshot)
    assert verify(snapshot, plan) == []
    placed = sorted(plan.placements, key=lambda found: found.start)
    assert placed[-1].end <= EPOCH + DAY
    order = [weights[int(found.lanes[0].job.removeprefix("j"))] for found in placed]
    assert order == sorted(weights, reverse=True)


def test_no_deadline_of_a_few_is_given_up_for_value() -> None:
    """Three light jobs are due on the first day, on which the heavy one could have all the hours."""
    light = [replace(job(f"due-{n}", 0.01, 3), deadline=EPOCH + DAY, position=n) for n in range(3)]
    snapshot = Snapshot(EPOCH, (job("heavy", 9, 60), *light), (PoolView(replace(KAGGLE, sessions_max=1)),), WEEK)
    plan = Planner(QUICK).plan(snapshot)
    case = make_case(snapshot)
    assert len(jobs_on_time(case, Schedule(plan.placements, {}))) == 3
    assert verify(snapshot, Plan(EPOCH, plan.placements, ())) == []


def test_among_many_jobs_deadlines_are_met_as_far_as_that_costs_little() -> None:
    """Light jobs of a heavy one's first day, in a week of 30 hours: three of two hours are affordable, of four not."""
    others = tuple(replace(job(f"other-{n}", 0.01, 1), position=9 + n) for n in range(FIRM_JOBS_MAX))
    pool = PoolView(replace(KAGGLE, sessions_max=1))
    for hours, on_time in ((4, 1), (2, 3)):
        light = [replace(job(f"due-{n}", 0.01, hours), deadline=EPOCH + DAY, position=n) for n in range(3)]
        snapshot = Snapshot(EPOCH, (job("heavy", 9, 60), *light, *others), (pool,), WEEK)
        plan = Planner(QUICK).plan(snapshot)
        assert verify(snapshot, plan) == []
        assert len(jobs_on_time(make_case(snapshot), Schedule(plan.placements, {}))) == on_time
