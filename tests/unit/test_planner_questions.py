"""Questions put to the planner: why a job waits, what would change, what another rule would do."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from jobs.nouns.window import DAY, HOUR, WEEK
from jobs.spec import Gate
from scheduler.core.ledger import Charge
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.reasons import HeldByPerson, Outbid, from_json, weight_rounded_up
from scheduler.core.snapshot import JobView, LiveRun, PoolView, Rate, Snapshot
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.planner.questions.differ import differences, outlook
from scheduler.planner.questions.explain import explain
from scheduler.planner.questions.orders import POLICIES
from scheduler.planner.questions.whatif import InsertJob, SetHours, SetWeight, TakeDown, UnknownName, apply, what_if
from scheduler.planner.search.deadlines import FIRM_JOBS_MAX
from scheduler.planner.verify import verify
from tests.lab.planner.cases import EPOCH as NOW
from tests.lab.planner.cases import KAGGLE, SAGEMAKER
from tests.lab.planner.small import job, seed_week

QUICK = PlannerOptions(search_steps=5)


def test_being_outbid_names_a_weight_that_starts_the_job() -> None:
    """The weight is tried: planned again with it the job starts, with a tenth less it does not."""
    snapshot = Snapshot(NOW, (job("strong", 4, 10), job("weak", 1, 10)), (PoolView(SAGEMAKER),), WEEK)
    reason = explain(snapshot, "weak", QUICK)
    assert isinstance(reason, Outbid)
    assert reason.price is not None
    assert reason.weight_to_start is not None
    enough, _ = what_if(snapshot, [SetWeight("weak", reason.weight_to_start)], options=QUICK)
    less, _ = what_if(snapshot, [SetWeight("weak", reason.weight_to_start * 0.9)], options=QUICK)
    assert enough.due_now[0].lanes[0].job == "weak"
    assert less.due_now[0].lanes[0].job == "strong"
    assert explain(snapshot, "strong", QUICK) is None


def test_what_if_tells_who_gains_and_who_loses() -> None:
    """Taking Kaggle down delays main; more SageMaker hours show up as such; nothing changed is nothing."""
    snapshot = seed_week()
    _, nothing = what_if(snapshot, [], options=QUICK)
    assert nothing.nothing
    _, down = what_if(snapshot, [TakeDown("kaggle")], options=QUICK)
    assert {change.pool: change.seconds_after for change in down.pools}["kaggle"] == 0
    assert down.value_after < down.value_before
    _, more = what_if(snapshot, [SetHours("sagemaker", 8)], options=QUICK)
    assert {change.pool: change.seconds_after for change in more.pools}["sagemaker"] > 28 * HOUR
    _, added = what_if(snapshot, [InsertJob(job("new", 9, 2))], options=QUICK)
    new = next(change for change in added.jobs if change.job == "new")
    assert new.before is None
    assert new.after is not None
    assert new.after.finish is not None
    plan, _ = what_if(snapshot, [], policy="fifo", options=QUICK)
    assert plan.made_by == "fifo"


@pytest.mark.parametrize("edit", [TakeDown("moon"), SetHours("moon", 1), SetWeight("nobody", 1)])
def test_what_if_about_somebody_unknown_lists_who_is_known(edit: TakeDown | SetHours | SetWeight) -> None:
    with pytest.raises(UnknownName, match="known: "):
        what_if(seed_week(), [edit], options=QUICK)


def test_differences_compare_starts_finishes_and_hours() -> None:
    snapshot = Snapshot(NOW, (job("a", 1, 1),), (PoolView(SAGEMAKER),), WEEK)
    whole = Plan(NOW, (Placement("sagemaker", NOW, NOW + 4_320, (PlannedLane("a", 1, 3_600),)),), (), value=1.0)
    found = differences(snapshot, Plan(NOW, (), ()), whole)
    (change,) = found.jobs
    assert change.before is None
    assert change.after is not None
    assert (change.after.start, change.after.finish, change.after.session_seconds) == (NOW, NOW + 4_320, 4_320)
    assert (found.pools[0].seconds_before, found.pools[0].seconds_after) == (0, 4_320)


def live(snapshot: Snapshot, name: str, pool: str, end: int) -> Snapshot:
    """The snapshot in which ``name`` has been running on ``pool`` for an hour."""
    run = LiveRun("key", NOW - HOUR, end, end, (name,))
    pools = tuple(
        replace(view, live=(run,), charges=(Charge(run.start, end, held=True, run="key"),))
        if view.pool.name == pool
        else view
        for view in snapshot.pools
    )
    jobs = tuple(replace(view, running="key") if view.name == name else view for view in snapshot.jobs)
    return replace(snapshot, jobs=jobs, pools=pools)


def test_an_outlook_counts_what_a_live_run_will_still_save() -> None:
    """Two hours are left and the run has two and a half: the job finishes with it, on time, no session planned."""
    due = replace(job("a", 1, 2), deadline=NOW + 3 * HOUR)
    snapshot = live(Snapshot(NOW, (due, job("b", 1, 2)), (PoolView(SAGEMAKER),), WEEK), "a", "sagemaker", NOW + 9_000)
    plan = Planner(QUICK).plan(snapshot)
    found = outlook(snapshot, plan, "a")
    assert (found.start, found.finish, found.on_time) == (NOW - HOUR, NOW + 9_000, True)
    assert (found.session_seconds, found.steps) == (0, 2 * HOUR)
    _, down = what_if(snapshot, [TakeDown("sagemaker")], options=QUICK)
    assert "a" not in {change.job for change in down.jobs}


def test_an_outlook_adds_the_live_run_to_the_sessions_that_follow() -> None:
    """Of five hours of work the run saves two and a half less nothing; the next day's session ends the job."""
    snapshot = live(Snapshot(NOW, (job("a", 1, 5),), (PoolView(SAGEMAKER),), WEEK), "a", "sagemaker", NOW + 9_000)
    plan = Planner(QUICK).plan(snapshot)
    found = outlook(snapshot, plan, "a")
    assert found.steps >= 5 * HOUR
    assert found.finish == plan.placements[-1].end
    assert found.session_seconds == sum(placed.end - placed.start for placed in plan.placements) < 4 * HOUR


def test_an_outlook_of_a_job_nobody_knows_is_an_error() -> None:
    with pytest.raises(KeyError):
        outlook(seed_week(), Plan(NOW, (), ()), "nobody")


def test_explaining_takes_few_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """The price tells about where the weight lies; plans without local search come near, a few with it make sure."""
    made = light = 0
    really = Planner.plan

    def counting(self: Planner, snapshot: Snapshot, incumbent: Plan | None = None) -> Plan:
        nonlocal made, light
        made, light = (made, light + 1) if self._options.search_steps == 0 else (made + 1, light)
        return really(self, snapshot, incumbent)

    monkeypatch.setattr(Planner, "plan", counting)
    snapshot = seed_week()
    for name, weight in (("m0", 0.4), ("m4", 0.003), ("m5", 2.0)):
        made = light = 0
        changed = apply(snapshot, SetWeight(name, weight))
        reason = explain(changed, name, QUICK)
        assert isinstance(reason, Outbid)
        assert reason.weight_to_start is not None
        assert made <= 8
        assert light <= 14


@pytest.mark.parametrize("name", ["m1", "m3", "m5"])
@pytest.mark.parametrize("with_incumbent", [False, True])
def test_the_weight_that_is_told_starts_the_job(name: str, with_incumbent: bool) -> None:
    """The number in the sentence, typed as it stands there, is enough; two percent less is not."""
    snapshot = seed_week()
    incumbent = Planner(QUICK).plan(snapshot) if with_incumbent else None
    reason = explain(snapshot, name, QUICK, incumbent)
    assert isinstance(reason, Outbid)
    told = re.search(r"at priority ([0-9.]+)", reason.sentence())
    assert told is not None
    assert float(told[1]) == reason.weight_to_start

    def starts(weight: float) -> bool:
        plan, _ = what_if(snapshot, [SetWeight(name, weight)], None, QUICK, incumbent)
        return name in {planned_lane.job for placed in plan.due_now for planned_lane in placed.lanes}

    assert starts(float(told[1]))
    assert not starts(float(told[1]) * 0.97)


@pytest.mark.parametrize("weight", [0.0012345, 0.999, 1.0, 2.001, 9.999, 12_345.6, 3e-7])
def test_a_weight_is_told_in_three_digits_and_never_too_low(weight: float) -> None:
    told = weight_rounded_up(weight)
    assert weight <= told <= weight * 1.0101
    assert float(f"{told:.3g}") == told


def test_a_what_if_that_wins_nothing_keeps_the_plan_in_force() -> None:
    """The daemon keeps its plan unless clearly more is won, so the answer does too."""
    snapshot = seed_week()
    incumbent = Planner(QUICK).plan(snapshot)
    plan, difference = what_if(snapshot, [SetWeight("m5", 2.01)], None, QUICK, incumbent)
    assert plan.made_by == "incumbent"
    assert difference.nothing


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_makes_a_plan_that_breaks_no_rule(policy: str) -> None:
    snapshot = seed_week()
    gated = replace(snapshot, jobs=tuple(_behind_main(view) for view in snapshot.jobs))
    for case in (snapshot, gated, live(gated, "main", "kaggle", NOW + 3 * HOUR)):
        plan, _ = what_if(case, [], policy, QUICK)
        assert plan.made_by == policy
        assert plan.warnings == ()
        assert verify(case, plan) == []
        assert plan.value > 0


def _behind_main(view: JobView) -> JobView:
    return view if view.name == "main" else replace(view, gate=Gate("main", 0.2))


def test_the_static_week_is_what_people_write_on_paper() -> None:
    """Three times ten hours of main, four hours a day of the managers in turn, whatever they are worth."""
    plan, _ = what_if(seed_week(), [], "static", QUICK)
    kaggle = [placed for placed in plan.placements if placed.pool == "kaggle"]
    sagemaker = [placed for placed in plan.placements if placed.pool == "sagemaker"]
    assert [placed.end - placed.start for placed in kaggle] == [10 * HOUR] * 3
    assert {planned_lane.job for placed in kaggle for planned_lane in placed.lanes} == {"main"}
    assert [placed.start for placed in sagemaker] == [NOW + day * DAY for day in range(7)]
    assert [placed.lanes[0].job for placed in sagemaker] == ["m0", "m1", "m2", "m3", "m4", "m5", "m0"]


def test_a_static_turn_that_nobody_can_take_is_lost() -> None:
    """Finished and held jobs keep their turns; nobody else gets them."""
    held = replace(job("held", 2, 12), blocked=HeldByPerson("ann", ""))
    jobs = (job("heavy", 9, 60), held, job("short", 1, 1), job("long", 1, 60))
    plan, _ = what_if(Snapshot(NOW, jobs, (PoolView(KAGGLE), PoolView(SAGEMAKER)), WEEK), [], "static", QUICK)
    turns = [(placed.start - NOW) // DAY for placed in plan.placements if placed.pool == "sagemaker"]
    assert turns == [1, 2, 4]  # held, long, short, held, long, short, held


def test_each_simple_order_starts_who_it_says() -> None:
    """On one place for one session each order has its own favourite."""
    soon = replace(job("soon", 1, 40), deadline=NOW + 2 * DAY, position=3)
    heavy = replace(job("heavy", 5, 400), position=2)
    small = replace(job("small", 2, 4), position=1)
    first = replace(job("first", 1, 40), position=0)
    fast = replace(job("fast", 2, 40), rates={"kaggle": Rate(1.2), "sagemaker": Rate(3.0)}, position=4)
    snapshot = Snapshot(NOW, (soon, heavy, small, first, fast), (PoolView(SAGEMAKER),), WEEK)
    found = {}
    for policy in set(POLICIES) - {"static"}:
        plan, _ = what_if(snapshot, [], policy, QUICK)
        found[policy] = plan.due_now[0].lanes[0].job
    assert found == {
        "fifo": "first",
        "edf": "soon",
        "priority": "heavy",
        "srtf": "small",
        "smith": "small",
        "density": "fast",
    }


def due_beside(others: int) -> Snapshot:
    """One job must start now to be on time, on the only pool."""
    due = replace(job("due", 1, 3), allowed_pools=("sagemaker",), deadline=NOW + 3 * HOUR + 900)
    jobs = (due, *(replace(job(f"other-{n}", 1, 4), position=n + 1) for n in range(others)))
    return Snapshot(NOW, jobs, (PoolView(SAGEMAKER),), DAY)


@pytest.mark.parametrize("others", [1, FIRM_JOBS_MAX - 1])
def test_where_a_deadline_goes_first_no_weight_is_told_and_that_is_said(others: int) -> None:
    """It is not given up, whatever another one weighs."""
    reason = explain(due_beside(others), "other-0", PlannerOptions(search_steps=0))
    assert isinstance(reason, Outbid)
    assert reason.by == "due"
    assert reason.weight_to_start is None
    assert reason.no_weight
    assert "no priority would start it now" in reason.sentence()
    assert from_json(reason.to_json()) == reason
    assert "no_weight" not in replace(reason, no_weight=False).to_json()


@pytest.mark.parametrize("others", [FIRM_JOBS_MAX, 310])
def test_among_many_jobs_a_weight_is_told_that_starts_one_before_a_deadline(others: int) -> None:
    reason = explain(due_beside(others), "other-0", PlannerOptions(search_steps=0))
    assert isinstance(reason, Outbid)
    assert reason.by == "due"
    assert reason.weight_to_start is not None
    heavier = apply(due_beside(others), SetWeight("other-0", reason.weight_to_start))
    assert [one.lanes[0].job for one in Planner(PlannerOptions(search_steps=0)).plan(heavier).due_now] == ["other-0"]
