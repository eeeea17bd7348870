"""Never below a simple order: deadlines met are EDF's at least, and no order that meets as many makes more value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.core.plan import Plan
from scheduler.core.snapshot import PoolView, Snapshot
from scheduler.core.window import DAY, WEEK
from scheduler.planner import Options, Planner, value, verify
from scheduler.planner.dispatch.dispatcher import place
from scheduler.planner.dispatch.orders import ORDERS, in_order
from scheduler.planner.model.case import make_case
from scheduler.planner.model.policy import PLAIN, Policy, Schedule
from scheduler.planner.search.candidates import Bids, Candidate, Floor, choose
from scheduler.planner.search.score import Score, met
from tests.lab.planner.cases import EPOCH, KAGGLE
from tests.lab.planner.small import job
from tests.lab.planner.synthetic import KINDS, Kind, synthetic
from tests.lab.planner.trace import on_our_pools

QUICK = Options(search_steps=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("count", "seed"), [(80, 0), (80, 3), (300, 1)])
def test_no_plan_of_a_trace_is_below_a_simple_order(kind: Kind, count: int, seed: int) -> None:
    snapshot = on_our_pools(synthetic(kind, count, seed), count)
    case = make_case(snapshot)
    orders = {name: place(case, in_order(name)) for name in ORDERS} | {"density": place(case, PLAIN)}
    plan = Planner(QUICK).plan(snapshot)
    assert verify(snapshot, plan) == []
    assert plan.warnings == ()
    on_time = len(met(case, Schedule(plan.placements, {})))
    assert on_time >= len(met(case, orders["edf"]))
    for name, found in orders.items():
        worth = value(snapshot, found.placements)
        assert plan.value >= worth * (1 - 1e-9) or on_time > len(met(case, found)), name


def candidate(on_time: int, worth: float) -> Candidate:
    return Candidate(Policy(), Bids(()), Schedule((), {}), Score(on_time, worth, 0.0))


@pytest.mark.parametrize(
    ("floor", "scores", "chosen"),
    [
        # Value is what the orders leave: among those that reach it, nearly the most deadlines.
        (Floor(20, 100.0), [(20, 60.0), (5, 100.0), (40, 90.0), (30, 101.0), (29, 103.0), (24, 110.0)], (29, 103.0)),
        # None reaches it: deadlines come first, of ten one may be given up.
        (Floor(20, 100.0), [(20, 60.0), (5, 100.0), (40, 90.0), (36, 95.0), (35, 97.0)], (36, 95.0)),
        # Of fewer than ten deadlines none is given up, whatever it costs.
        (Floor(2, 100.0), [(2, 60.0), (0, 100.0), (5, 50.0), (4, 100.0)], (5, 50.0)),
        # Nobody is chosen who meets fewer than earliest deadline first.
        (Floor(20, 100.0), [(20, 60.0), (19, 200.0)], (20, 60.0)),
    ],
)
def test_which_candidate_is_chosen(floor: Floor, scores: list[tuple[int, float]], chosen: tuple[int, float]) -> None:
    assert choose([candidate(*one) for one in scores], floor).score[:2] == chosen


@pytest.mark.parametrize("weights", [(1, 2, 4, 8, 3), (8, 1, 1, 1, 2), (3, 5, 1, 9, 4)])
def test_of_what_is_worth_as_much_heavy_jobs_end_first(weights: tuple[int, ...]) -> None:
    """An hour is worth the same all day, and the search goes from plan to plan of the same value."""
    jobs = tuple(replace(job(f"j{n}", weight, 2), position=n) for n, weight in enumerate(weights))
    snapshot = Snapshot(EPOCH, jobs, (PoolView(replace(KAGGLE, sessions_max=1)),), WEEK)
    plan = Planner(Options()).plan(snapshot)
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
    assert len(met(case, Schedule(plan.placements, {}))) == 3
    assert verify(snapshot, Plan(EPOCH, plan.placements, ())) == []
