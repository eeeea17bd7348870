"""The walk over schedules: what is taken out of a plan goes back in, and nothing is lost on the way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.nouns.window import DAY, HOUR, WEEK
from jobs.spec import Gate, Needs
from scheduler.core.plan import Placement, Plan
from scheduler.core.snapshot import JobView, PoolView, Rate, Snapshot
from scheduler.planner.dispatch.dispatcher import fill_gaps, make_schedule
from scheduler.planner.lp.grid import make_grid
from scheduler.planner.lp.prices import scarcity_prices
from scheduler.planner.model.case import make_case
from scheduler.planner.model.lanes import compose
from scheduler.planner.model.policy import PLAIN
from scheduler.planner.model.value import value
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.planner.questions.whatif import SetWeight, apply
from scheduler.planner.search.rebuild import ScoredSchedule, rebuild, without_jobs
from scheduler.planner.search.score import score
from scheduler.planner.verify import verify
from tests.lab.planner.cases import EPOCH, KAGGLE, SAGEMAKER, SMALL_MIX, make_pools, random_case


def job(name: str, weight: float, hours: float, gate: Gate | None = None, position: int = 0) -> JobView:
    pools = ("kaggle", "sagemaker")
    return JobView(
        name,
        weight,
        int(hours * HOUR),
        0,
        Needs(),
        {pool: Rate(1.0) for pool in pools},
        dict.fromkeys(pools, 600),
        dict.fromkeys(pools, 0),
        gate=gate,
        reference_rate=1.0,
        position=position,
    )


def family() -> Snapshot:
    """A parent, a child behind half of its work, and somebody else."""
    jobs = (job("a", 3, 20), job("b", 2, 10, Gate("a", 0.5), 1), job("c", 1, 20, position=2))
    return Snapshot(EPOCH, jobs, (PoolView(KAGGLE), PoolView(SAGEMAKER)), WEEK)


def test_a_parent_that_is_taken_out_takes_the_children_behind_its_gate_along() -> None:
    case = make_case(family())
    whole = make_schedule(case)
    assert {planned_lane.job for placed in whole.placements for planned_lane in placed.lanes} == {"a", "b", "c"}
    rest = without_jobs(case, whole, {0: case.now})
    assert {planned_lane.job for placed in rest.placements for planned_lane in placed.lanes} == {"c"}
    assert rest.gate_passes == {}


def test_a_gate_that_still_passes_keeps_its_children() -> None:
    case = make_case(family())
    whole = make_schedule(case)
    mine = _sessions(whole.placements, "a")
    rest = without_jobs(case, whole, {0: mine[-1][0]})
    assert _sessions(rest.placements, "a") == mine[:-1]
    assert _sessions(rest.placements, "b") == _sessions(whole.placements, "b")
    assert rest.gate_passes == whole.gate_passes


def _sessions(placements: tuple[Placement, ...], name: str) -> list[tuple[int, int]]:
    return [(placed.start, placed.end) for placed in placements if placed.lanes[0].job == name]


@pytest.mark.parametrize("seed", [0, 3])
def test_a_rebuilt_plan_breaks_no_rule_and_is_worth_more(seed: int) -> None:
    """Forty steps without a solver's prices, from the plainest plan; the same again gives the same."""
    snapshot = random_case(50, make_pools(SMALL_MIX), seed)
    case = make_case(snapshot, firm_deadlines=False)
    plain = fill_gaps(case, make_schedule(case))
    start = ScoredSchedule(plain, score(case, plain))
    prices = scarcity_prices(case, make_grid(case))
    found = rebuild(case, start, PLAIN, prices, 40)
    assert verify(snapshot, Plan(EPOCH, found.schedule.placements, ())) == []
    assert value(snapshot, found.schedule.placements) > value(snapshot, plain.placements) * 1.001
    assert rebuild(case, start, PLAIN, prices, 40).schedule == found.schedule


def test_nothing_to_rebuild_is_left_alone() -> None:
    closed = tuple(PoolView(pool, closed_until=EPOCH + WEEK, closed_why="down") for pool in (KAGGLE, SAGEMAKER))
    case = make_case(replace(family(), pools=closed))
    start = ScoredSchedule(make_schedule(case), score(case, make_schedule(case)))
    assert rebuild(case, start, PLAIN, scarcity_prices(case, make_grid(case)), 5) == start


def test_a_job_that_has_become_dear_does_not_wait_for_the_plan_in_force() -> None:
    """The new plan is worth ten times as much."""
    jobs = tuple(job(f"job-{n:02d}", 1.0, 10, position=n) for n in range(40))
    snapshot = Snapshot(EPOCH, jobs, (PoolView(KAGGLE), PoolView(SAGEMAKER)), WEEK)
    options = PlannerOptions(search_steps=0)
    incumbent = Planner(options).plan(snapshot)
    assert "job-39" not in {planned_lane.job for placed in incumbent.due_now for planned_lane in placed.lanes}
    plan = Planner(options).plan(apply(snapshot, SetWeight("job-39", 1_000.0)), incumbent)
    assert "job-39" in {planned_lane.job for placed in plan.due_now for planned_lane in placed.lanes}


@pytest.mark.parametrize("patience", [0.0, 1.0])
def test_the_quick_look_refuses_only_what_the_whole_look_refuses(patience: float) -> None:
    snapshot = random_case(50, make_pools(SMALL_MIX), 1)
    case = make_case(snapshot, firm_deadlines=False)
    prices = scarcity_prices(case, make_grid(case))
    admits = prices.admits([1.0] * len(case.classes), patience)
    refused = 0
    remaining = [view.view.remaining_steps for view in case.jobs]
    for number, group in enumerate(case.classes):
        for index, offer in enumerate(group.offers):
            counts, least = admits.least(number, EPOCH + DAY)
            if offer is None or offer.density(remaining[index]) * counts[index] >= least:
                continue
            refused += 1
            for room in (offer.cap, offer.cap // 2):
                session = compose(group, room, index, (), remaining)
                assert session is None or not admits(number, EPOCH + DAY, session)
    assert refused > 5
