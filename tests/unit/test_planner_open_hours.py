"""No open hour stands empty while work waits, and no scarce hour is spent on half a session."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota, RollingQuota
from jobs.nouns.window import DAY, HOUR, WEEK, Calendar, DailyHours
from jobs.spec import Gate, Needs
from scheduler.core.ledger import Charge
from scheduler.core.plan import Placement, PlannedLane
from scheduler.core.snapshot import Arrivals, JobView, LiveRun, PoolView, Rate, Snapshot
from scheduler.planner.dispatch.dispatcher import make_schedule
from scheduler.planner.model.case import make_case
from scheduler.planner.model.policy import Schedule
from scheduler.planner.model.urgency import with_urgency
from scheduler.planner.model.value import value
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.planner.questions.whatif import SetWeight, apply
from scheduler.planner.search.candidates import simple_orders
from scheduler.planner.search.conserve import conserve
from scheduler.planner.search.rebuild import without_jobs
from scheduler.planner.search.score import score
from scheduler.planner.verify import verify
from tests.lab.night import share
from tests.lab.planner.cases import EPOCH, KAGGLE, LOCAL
from tests.lab.planner.strategies import snapshots

QUICK = PlannerOptions(search_steps=0)


def job(name: str, hours: float, weight: float = 1.0, **others: object) -> JobView:
    names = ("kaggle", "local")
    view = JobView(
        name=name,
        weight=weight,
        target_step=round(hours * HOUR),
        done_step=0,
        needs=Needs(),
        rates={"kaggle": Rate(1.6), "local": Rate(1.0)},
        setup_seconds=dict.fromkeys(names, 600),
        checkpoint_seconds=dict.fromkeys(names, 60),
        reference_rate=1.0,
    )
    return replace(view, **others)  # type: ignore[arg-type]


def test_a_job_alone_in_the_queue_does_not_wait_for_the_pool_where_its_kind_is_fastest() -> None:
    """Kaggle's week is used up; the local GPU is free, and has been free when managers came before."""
    now = EPOCH + 3 * DAY
    alone = job("ufm", 12, kind="ufm")
    used = Charge(EPOCH, EPOCH + 30 * HOUR)
    other = job("demo", 30, kind="demo", rates={"kaggle": Rate(1.0), "local": Rate(1.0)})
    history = [Arrivals(one.kind, (now - 15 * DAY, now - 8 * DAY, now - DAY), one) for one in (alone, other)]
    local = replace(LOCAL, hours=(DailyHours("UTC", 0, 12 * HOUR),))
    snapshot = Snapshot(now, (alone,), (PoolView(KAGGLE, (used,)), PoolView(local)), WEEK, arrivals=tuple(history))
    plan = Planner(QUICK).plan(with_urgency(snapshot))
    assert [(placed.pool, placed.start) for placed in plan.due_now] == [("local", now)]
    assert plan.value == Planner(QUICK).plan(with_urgency(replace(snapshot, arrivals=()))).value


@given(snapshots())
@settings(max_examples=share(60))
def test_filling_idle_pools_never_costs_value(snapshot: Snapshot) -> None:
    case = make_case(snapshot)
    whole = make_schedule(case)
    for job_index, _ in case.columns.startable[:2]:
        left = without_jobs(case, whole, {job_index: case.now})
        assert score(case, conserve(case, left))[:2] >= score(case, left)[:2]


def test_a_job_starts_in_an_idle_pool_though_its_own_planned_session_holds_the_hours() -> None:
    """Six hours in any 24: beside both planned sessions there is no room now, in place of the job's own there is."""
    span = RollingQuota("24 h", 6 * HOUR, DAY)
    pool = Pool("local", "local", "3090", quotas=(span,), session_cap_seconds=4 * HOUR, session_seconds_min=1800)
    sooner, later = (
        job("sooner", 1, 3.0, setup_seconds={"local": 6_000}),
        job("later", 1, setup_seconds={"local": 6_000}),
    )
    snapshot = Snapshot(EPOCH, (sooner, later), (PoolView(pool),), DAY)
    case = make_case(snapshot)
    own, other = (
        Placement("local", EPOCH + at * HOUR, EPOCH + at * HOUR + 10_500, (PlannedLane(name, 1, HOUR),))
        for name, at in (("sooner", 17), ("later", 20))
    )
    schedule = conserve(case, Schedule((own, other), {}))
    assert [(placed.start, placed.lanes[0].job) for placed in schedule.placements] == [
        (EPOCH, "sooner"),
        (other.start, "later"),
    ]
    assert sum(lane.steps for placed in schedule.placements for lane in placed.lanes) == 2 * HOUR


def test_hours_of_a_week_that_are_planned_are_not_spent_on_half_a_session() -> None:
    """Both lanes of Kaggle's last ten hours belong to two managers, which come in four hours."""
    pool = replace(KAGGLE, devices_per_session=2, sessions_max=1)
    used = Charge(EPOCH, EPOCH + 20 * HOUR)
    now = EPOCH + 3 * DAY
    own = job("own-script", 40, allowed_pools=("kaggle",))
    managers = [job(f"m{n}", 15, allowed_pools=("kaggle",), not_before=now + 4 * HOUR) for n in range(2)]
    snapshot = with_urgency(Snapshot(now, (own, *managers), (PoolView(pool, (used,)),), WEEK))
    plan = Planner(QUICK).plan(snapshot)
    assert verify(snapshot, plan) == []
    first = min(plan.placements, key=lambda placed: placed.start)
    assert {lane.job for lane in first.lanes} == {"m0", "m1"}


@pytest.mark.parametrize("checkpoint", [0, 120])
def test_a_gate_behind_a_running_parent_passes_with_the_checkpoint(checkpoint: int) -> None:
    """It needs two of the ten hours that the session still has."""
    now = EPOCH + DAY
    parent = job("main", 20, running="run", checkpoint_seconds=dict.fromkeys(("kaggle", "local"), checkpoint))
    child = job("ufm", 4, gate=Gate("main", 0.16))
    run = LiveRun("run", now - HOUR, now + 10 * HOUR, now + 10 * HOUR, ("main",))
    kaggle = PoolView(KAGGLE, (Charge(run.start, run.held_until, held=True, run="run"),), (run,))
    snapshot = Snapshot(now, (parent, child), (kaggle,), WEEK)
    plan = Planner(QUICK).plan(snapshot)
    assert plan.made_by == "prices"
    assert verify(snapshot, plan) == []
    starts = min(placed.start for placed in plan.placements if placed.lanes[0].job == "ufm")
    assert now + 2 * HOUR <= starts < now + 3 * HOUR
    assert plan.bound is not None
    assert plan.value <= plan.bound


def test_a_weight_that_is_tried_changes_what_the_daemon_reckons_from_it() -> None:
    """Urgency follows from all weights: the child's counts for its parent, and all are scaled together."""
    family = (job("main", 70, 8), *(job(f"m{n}", 12, 3, gate=Gate("main", 0.1)) for n in range(3)), job("eval", 1, 2))
    plain = Snapshot(EPOCH, family, (PoolView(KAGGLE), PoolView(LOCAL)), WEEK)
    tried = apply(with_urgency(plain), SetWeight("m1", 9.0))
    jobs = tuple(replace(view, weight=9.0) if view.name == "m1" else view for view in family)
    assert tried == with_urgency(replace(plain, jobs=jobs))
    assert Planner(QUICK).plan(tried).digest == Planner(QUICK).plan(with_urgency(replace(plain, jobs=jobs))).digest


def test_the_bound_holds_where_a_live_run_outlasts_the_opening_hours() -> None:
    """What it holds while the pool is shut takes nothing from the next night."""
    now = EPOCH + 8 * HOUR - 600  # ten minutes before the pool shuts
    pool = Pool("local", "local", "3090", hours=(DailyHours("UTC", 20 * HOUR, 8 * HOUR),), stop_margin_seconds=0)
    run = LiveRun("run", now - HOUR, now + 11 * HOUR, now + 11 * HOUR, ("gone",))
    view = PoolView(pool, (Charge(run.start, run.held_until, held=True, run="run"),), (run,))
    snapshot = Snapshot(now, (job("ufm", 100, setup_seconds={"local": 0}),), (view,), DAY)
    plan = Planner(QUICK).plan(snapshot)
    assert plan.bound is not None
    assert 0 < plan.value == value(snapshot, plan.placements) <= plan.bound


@given(snapshots())
@settings(max_examples=share(60))
def test_no_simple_order_that_meets_as_many_deadlines_is_worth_more(snapshot: Snapshot) -> None:
    snapshot = with_urgency(snapshot)
    case = make_case(snapshot)
    plan = Planner(QUICK).choose(case, None, []).candidate.score
    for name, found in simple_orders(case).items():
        if found.score.on_time >= plan.on_time:
            assert found.score.value <= plan.value + 1e-6, name


def test_a_job_that_is_done_and_still_listed_has_no_reason_to_wait() -> None:
    done = job("ufm", 4, done_step=4 * HOUR)
    week = CalendarQuota("week", 30 * HOUR, Calendar("week", "UTC", 5))
    plan = Planner(QUICK).plan(Snapshot(EPOCH, (done,), (PoolView(replace(KAGGLE, quotas=(week,))),), WEEK))
    assert plan.deferrals == ()


@pytest.mark.parametrize("weight", [1e12, 1e300])
def test_one_enormous_weight_takes_the_bound_and_the_prices_from_nobody(weight: float) -> None:
    jobs = [replace(job(f"job-{n}", 20, 1.0 + n), position=n) for n in range(6)]
    jobs[5] = replace(jobs[5], weight=weight)
    snapshot = with_urgency(Snapshot(EPOCH, tuple(jobs), (PoolView(KAGGLE), PoolView(LOCAL)), WEEK))
    plan = Planner(QUICK).plan(snapshot)
    assert plan.warnings == ()
    assert plan.bound is not None
    assert plan.value <= plan.bound
    assert "job-5" in {lane.job for placed in plan.due_now for lane in placed.lanes}
