"""All layers together: quality on the seeds' week, incumbents, deadlines, failures of the solver, questions asked."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from jobs.nouns.window import DAY, HOUR, WEEK
from jobs.spec import Gate
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.snapshot import JobView, PoolView, Rate, Snapshot
from scheduler.planner import planner as layers_module
from scheduler.planner.dispatch.dispatcher import in_queue_order
from scheduler.planner.lp import scale, solver
from scheduler.planner.model.case import make_case
from scheduler.planner.model.urgency import with_urgency
from scheduler.planner.planner import Planner, PlannerOptions, plan_week
from scheduler.planner.questions.differ import outlook
from scheduler.planner.verify import verify
from tests.lab.planner.cases import EPOCH as NOW
from tests.lab.planner.cases import KAGGLE, SAGEMAKER
from tests.lab.planner.churn import churn
from tests.lab.planner.small import job, seed_week

QUICK = PlannerOptions(search_steps=20)


def test_the_week_of_the_seeds_is_within_a_percent_of_the_bound() -> None:
    """Greedy reaches 0.77: it gives Kaggle hours to managers that main would use better later in the week."""
    plan = plan_week(seed_week())
    assert plan.bound is not None
    assert plan.value >= 0.99 * plan.bound
    assert plan.made_by == "prices"


def test_without_a_solver_the_plan_is_good_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing solver costs the bound and a little value, and is named in a warning."""
    monkeypatch.setitem(sys.modules, "highspy", None)
    plan = plan_week(seed_week())
    assert plan.bound is None
    assert plan.made_by == "dispatch"
    assert "highspy is not installed" in plan.warnings[0]
    assert plan.value > 480


def test_a_solver_that_runs_out_of_time_is_done_without() -> None:
    """The limit is the solver's own; what comes out is the dispatcher's plan and a warning."""
    plan = Planner(PlannerOptions(time_limit_seconds=0.0, search_steps=0)).plan(seed_week())
    assert plan.bound is None
    assert "Time limit reached" in plan.warnings[0]
    assert verify(seed_week(), plan) == []


def test_a_solver_that_takes_too_many_steps_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """What bounds it is counted, not timed: a plan does not depend on how busy the machine is."""
    monkeypatch.setattr(solver, "STEPS_PER_ROW", 0)
    plan = Planner(PlannerOptions(search_steps=0)).plan(seed_week())
    assert plan.bound is None
    assert "Iteration limit reached" in plan.warnings[0]
    assert verify(seed_week(), plan) == []


def test_a_refused_plan_falls_back_to_what_the_verifier_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verifier that dislikes SageMaker leaves the Kaggle sessions, and the plan tells why."""

    def dislikes_sagemaker(snapshot: Snapshot, plan: Plan) -> list[str]:
        bad = [found for found in plan.placements if found.pool == "sagemaker"]
        return [f"{found.pool} at {found.start}: disliked" for found in bad]

    monkeypatch.setattr(layers_module, "verify", dislikes_sagemaker)
    plan = Planner(QUICK).plan(seed_week())
    assert plan.made_by == "fallback"
    assert {found.pool for found in plan.placements} == {"kaggle"}
    assert "the verifier refused" in plan.warnings[0]


def test_the_plan_in_force_is_kept_for_small_changes() -> None:
    """Speeds off by three percent move almost nothing; a job that pays ten times as much moves the plan."""
    snapshot = seed_week()
    plan = Planner(QUICK).plan(snapshot)
    wobbled = replace(
        snapshot,
        jobs=tuple(
            replace(view, rates={name: Rate(rate.steps_per_second * 1.03) for name, rate in view.rates.items()})
            for view in snapshot.jobs
        ),
    )
    again = Planner(QUICK).plan(wobbled, plan)
    assert again.made_by == "incumbent"
    assert churn(plan, again, NOW, NOW + 3 * DAY) < 0.05
    rich = replace(snapshot, jobs=(*snapshot.jobs, job("rich", 80, 30)))
    assert "rich" in {
        planned_lane.job for found in Planner(QUICK).plan(rich, plan).due_now for planned_lane in found.lanes
    }


def test_a_deadline_goes_before_value() -> None:
    """A light job that must be ready on Sunday is, although others are worth more."""
    due = replace(job("due", 0.1, 7), deadline=NOW + 2 * DAY)
    snapshot = replace(seed_week(), jobs=(*seed_week().jobs, due))
    firm = Planner(QUICK).plan(snapshot)
    soft = Planner(replace(QUICK, firm_deadlines=False)).plan(snapshot)
    assert outlook(snapshot, firm, "due").on_time is True
    assert outlook(snapshot, soft, "due").on_time is False


def test_all_gates_closed_leaves_an_empty_plan_with_reasons() -> None:
    children = tuple(replace(job(f"c{n}", 1, 5), gate=Gate("nobody", 0.5)) for n in range(3))
    plan = plan_week(Snapshot(NOW, children, (PoolView(SAGEMAKER),)))
    assert plan.placements == ()
    assert {deferral.reason.code for deferral in plan.deferrals} == {"gate"}


def test_very_many_jobs_are_planned_in_parts_with_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight pools in two groups: one valid plan, the same in any order, below the bound of the whole."""
    monkeypatch.setattr(layers_module, "WHOLE_JOBS_MAX", 50)
    monkeypatch.setattr(scale, "POOLS_PER_GROUP", 4)
    pools = [replace(pool, name=f"{pool.name}-{n}") for pool in (KAGGLE, SAGEMAKER) for n in range(4)]
    names = [pool.name for pool in pools]
    jobs = tuple(
        replace(
            job(f"job-{n:03}", 1 + n % 5, 8 + n % 7),
            rates={name: Rate(1.2 if "kaggle" in name else 1.0) for name in names},
            setup_seconds=dict.fromkeys(names, 720),
            checkpoint_seconds=dict.fromkeys(names, 0),
            gate=Gate(f"job-{n - n % 7:03}", 0.3) if n % 7 else None,
        )
        for n in range(120)
    )
    snapshot = Snapshot(NOW, jobs, tuple(PoolView(pool) for pool in pools), WEEK)
    plan = Planner(QUICK).plan(snapshot)
    assert plan.made_by == "parts"
    assert verify(snapshot, plan) == []
    assert plan.bound is not None
    assert 0.8 * plan.bound < plan.value <= plan.bound
    started = {planned_lane.job for placement in plan.due_now for planned_lane in placement.lanes}
    assert started | {deferral.job for deferral in plan.deferrals} == {view.name for view in jobs}
    assert Planner(QUICK).plan(replace(snapshot, jobs=jobs[::-1], pools=snapshot.pools[::-1])).digest == plan.digest


def test_very_many_jobs_wait_where_there_is_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers_module, "WHOLE_JOBS_MAX", 2)
    snapshot = replace(seed_week(), pools=())
    plan = Planner(QUICK).plan(snapshot)
    assert plan.placements == ()
    assert {deferral.job for deferral in plan.deferrals} == {view.name for view in snapshot.jobs}


def test_of_very_many_jobs_those_are_planned_that_can_pay_and_what_gates_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups; a child that is worth much takes its worthless parent along, and no other of that family."""
    monkeypatch.setattr(layers_module, "WHOLE_JOBS_MAX", 50)
    monkeypatch.setattr(scale, "POOLS_PER_GROUP", 1)
    pools = [replace(SAGEMAKER, name=f"sagemaker-{n}") for n in range(2)]
    names = [pool.name for pool in pools]

    def seen(name: str, weight: float, parent: str | None = None) -> JobView:
        return replace(
            job(name, weight, 10),
            rates=dict.fromkeys(names, Rate(1.0)),
            setup_seconds=dict.fromkeys(names, 600),
            checkpoint_seconds=dict.fromkeys(names, 0),
            gate=None if parent is None else Gate(parent, 0.1),
        )

    others = [seen(f"other-{n:02}", 3.0) for n in range(60)]
    jobs = (*others, seen("parent", 0.01), seen("child", 90.0, "parent"), seen("sister", 0.01, "parent"))
    plan = Planner(QUICK).plan(with_urgency(Snapshot(NOW, jobs, tuple(PoolView(pool) for pool in pools), WEEK)))
    planned = {lane.job for placed in plan.placements for lane in placed.lanes}
    assert plan.made_by == "parts"
    assert {"parent", "child"} <= planned
    assert "sister" not in planned
    assert next(found.reason.code for found in plan.deferrals if found.job == "sister") == "gate"


@pytest.mark.parametrize("missing", ["highspy", "numpy"])
def test_a_missing_library_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    plan = plan_week(seed_week())
    assert missing in plan.warnings[0]
    assert verify(seed_week(), plan) == []


def test_equal_jobs_start_in_the_order_of_the_queue_and_others_stay_where_they_are() -> None:
    """Last is first in the queue here; wide has another weight and keeps its session, whatever its place."""
    jobs = [replace(job(name, 1, 3), position=place) for place, name in enumerate(("last", "middle", "early"))]
    wide = replace(job("wide", 2, 3), position=9)
    snapshot = Snapshot(NOW, (*jobs, wide), (PoolView(SAGEMAKER),), WEEK)
    days = ("wide", "early", "middle", "last")
    placements = [
        Placement("sagemaker", NOW + n * DAY, NOW + n * DAY + 4 * HOUR, (PlannedLane(name, 1, 3 * HOUR),))
        for n, name in enumerate(days)
    ]
    found = in_queue_order(make_case(snapshot), placements)
    assert [placed.lanes[0].job for placed in found] == ["wide", "last", "middle", "early"]
    assert [placed.start for placed in found] == [placed.start for placed in placements]
    plan = plan_week(snapshot)
    assert list(dict.fromkeys(placed.lanes[0].job for placed in plan.placements)) == ["wide", "last", "middle", "early"]


def test_of_equal_pools_the_first_by_name_is_taken_however_they_are_listed() -> None:
    twins = tuple(replace(KAGGLE, name=name) for name in ("kaggle-b", "kaggle-a", "kaggle-c"))
    names = [pool.name for pool in twins]
    only = replace(
        job("a", 1, 3),
        rates=dict.fromkeys(names, Rate(1.0)),
        setup_seconds=dict.fromkeys(names, 720),
        checkpoint_seconds=dict.fromkeys(names, 0),
    )
    for pools in (twins, twins[::-1]):
        plan = Planner(QUICK).plan(Snapshot(NOW, (only,), tuple(PoolView(pool) for pool in pools), WEEK))
        assert [placed.pool for placed in plan.placements] == ["kaggle-a"]


def test_where_no_pool_has_any_room_there_is_nothing_to_warn_of() -> None:
    snapshot = seed_week()
    closed = tuple(replace(view, closed_until=NOW + WEEK) for view in snapshot.pools)
    plan = Planner(QUICK).plan(replace(snapshot, pools=closed))
    assert (plan.warnings, plan.placements) == ((), ())
    assert plan.bound == 0
