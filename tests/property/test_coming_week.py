"""The coming week of a plan: lanes without holes, gaps that are really free, and jobs that really could use them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from jobs.nouns.pool import Pool
from jobs.nouns.window import DAY, HOUR, WEEK, DailyHours
from jobs.spec import Gate, Needs
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.reasons import HeldByPerson
from scheduler.core.snapshot import Arrivals, JobView, PoolView, Rate, Snapshot
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.model.case import make_case
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.planner.verify import verify
from scheduler.views.coming_week import ComingWeek, Gap, alike_gaps, coming_week
from tests.lab.night import share
from tests.lab.planner.cases import EPOCH, KAGGLE
from tests.lab.planner.strategies import snapshots

LOCAL = Pool("local", "local", "3090")
QUICK = PlannerOptions(search_steps=0)


def job(name: str, hours: float, pools: tuple[str, ...] = ("kaggle", "local"), **others: object) -> JobView:
    view = JobView(
        name=name,
        weight=1.0,
        target_step=round(hours * HOUR),
        done_step=0,
        needs=Needs(),
        rates={pool: Rate(1.0) for pool in pools},
        setup_seconds=dict.fromkeys(pools, 600),
        checkpoint_seconds=dict.fromkeys(pools, 60),
        reference_rate=1.0,
    )
    return replace(view, **others)  # type: ignore[arg-type]


def week_of(snapshot: Snapshot) -> ComingWeek:
    return coming_week(snapshot, Planner(QUICK).plan(snapshot))


def test_a_gap_names_what_every_job_lacks_and_what_would_change_it() -> None:
    big = job("big", 10, needs=Needs(vram_gib=24.0))
    held = job("held", 2, blocked=HeldByPerson("ann", "look first"))
    local = replace(LOCAL, vram_gib=16.0)
    week = week_of(Snapshot(EPOCH, (big, held), (PoolView(local),), WEEK))
    (gap,) = week.gaps
    assert (gap.pool, gap.start, gap.end) == (local.name, EPOCH, EPOCH + WEEK)
    assert gap.why == "no job fits: big needs 24 GiB; held waits: held by ann: look first"
    assert [(use.job, use.change) for use in gap.could_use] == [
        ("big", "if it fits into 16 GiB (schedctl advise)"),
        ("held", "schedctl queue release held"),
    ]


def test_a_child_that_waits_for_its_parent_could_use_a_gap_if_the_parent_were_sooner() -> None:
    parent = job("parent", 300, allowed_pools=("kaggle",))
    child = job("child", 3, allowed_pools=("local",), gate=Gate("parent", 1.0))
    week = week_of(Snapshot(EPOCH, (parent, child), (PoolView(KAGGLE), PoolView(LOCAL)), WEEK))
    (gap,) = [gap for gap in week.gaps if gap.pool == LOCAL.name]
    assert "child waits for parent at 100%" in gap.why
    assert ("child", "if parent gets there earlier") in [(use.job, use.change) for use in gap.could_use]


def test_hours_without_work_are_empty_closed_hours_and_used_quotas_are_not() -> None:
    local = replace(LOCAL, hours=(DailyHours("UTC", 20 * HOUR, 8 * HOUR),))
    week = week_of(Snapshot(EPOCH, (job("one", 1),), (PoolView(KAGGLE), PoolView(local)), WEEK))
    assert {gap.why for gap in week.gaps} == {"no job is left that could use it"}
    hours = {pool: sum(gap.length for gap in week.gaps if gap.pool == pool) / HOUR for pool in ("kaggle", "local")}
    assert 28 <= hours["kaggle"] <= 30
    assert 80 <= hours["local"] <= 84
    reasons = {one.why for lane in week.lanes for one in lane.stretches if one.kind == "unusable"}
    assert reasons == {"local is closed", "no week of kaggle is left beside what is planned"}
    assert len(alike_gaps(week)) == 2


def test_a_lane_beside_a_job_that_is_alone_in_its_session_is_a_gap() -> None:
    kaggle = replace(KAGGLE, devices_per_session=2)
    week = week_of(Snapshot(EPOCH, (job("one", 5, ("kaggle",)),), (PoolView(kaggle),), WEEK))
    beside = [gap for gap in week.gaps if gap.devices == 1]
    assert [(gap.lane, gap.start, gap.why) for gap in beside] == [(2, EPOCH, "no job is left that could use it")]
    assert week.lanes[0].stretches[0].job == "one"
    assert week.lanes[1].stretches[0].kind == "empty"


def test_expected_work_is_in_outline_and_could_use_the_gaps_after_it() -> None:
    kind = job("ufm", 3, kind="ufm")
    snapshot = Snapshot(EPOCH, (), (PoolView(LOCAL),), WEEK, arrivals=(Arrivals("ufm", (), kind, (EPOCH + DAY,)),))
    week = week_of(snapshot)
    assert [one.kind for one in week.expected] == ["ufm"]
    assert "ufm" in [use.job for gap in week.gaps for use in gap.could_use]


@settings(max_examples=share(120), deadline=None)
@given(snapshots())
def test_lanes_have_no_holes_and_whoever_could_use_a_gap_as_it_is_may_be_added_to_the_plan(snapshot: Snapshot) -> None:
    for plan in (Planner(QUICK).plan(snapshot), Plan(snapshot.now, (), ()), _first_half(snapshot)):
        week = coming_week(snapshot, plan)
        for lane in week.lanes:
            edges = [week.start, *(one.end for one in lane.stretches)]
            assert [one.start for one in lane.stretches] == edges[:-1]
            assert edges[-1] == week.end
            assert all(one.start < one.end for one in lane.stretches)
            assert all(bool(one.job) != bool(one.why) for one in lane.stretches)
        for gap in week.gaps:
            for use in gap.could_use:
                if not use.change:
                    assert _added(snapshot, plan, gap, use.job) == [], (gap, use)


def _first_half(snapshot: Snapshot) -> Plan:
    plan = dispatch(snapshot)
    return replace(plan, placements=plan.placements[: len(plan.placements) // 2])


def _added(snapshot: Snapshot, plan: Plan, gap: Gap, name: str) -> list[str]:
    """Return what the verifier has against a session of the job in the gap; a lane of a session passes."""
    case = make_case(snapshot)
    number = next(n for n, capacity in enumerate(case.capacities) if capacity.pool.name == gap.pool)
    pool, found = case.capacities[number].pool, next(one for one in case.jobs if one.view.name == name)
    if gap.devices < pool.devices_per_session:
        return []
    offer = case.classes[case.class_of[number]].offers[found.index]
    assert offer is not None
    planned = sum(lane.steps for one in plan.placements for lane in one.lanes if lane.job == name)
    left = found.view.remaining_steps - found.expected_steps - planned
    length = min(offer.shortest(left) + 2, gap.length)
    devices = min(len(offer.speeds), max(found.view.needs.devices_min, found.view.needs.devices_max))
    steps = offer.steps_in(length, devices, 1.0, left)
    start = gap.end - length
    added = Placement(gap.pool, start, gap.end, (PlannedLane(name, devices, steps),))
    return verify(snapshot, replace(plan, placements=(*plan.placements, added)))


def test_a_pool_without_a_shortest_session_is_shown_as_well() -> None:
    pool = replace(KAGGLE, session_seconds_min=0)
    week = coming_week(Snapshot(EPOCH, (), (PoolView(pool),), WEEK), Plan(EPOCH, (), ()))
    assert sum(gap.length for gap in week.gaps) == 30 * HOUR
