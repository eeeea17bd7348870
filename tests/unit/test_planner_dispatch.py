"""The dispatcher on small cases whose answer is known by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import DAY, HOUR, WEEK, Calendar
from jobs.spec import Gate, Needs
from scheduler.core.ledger import Charge
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.quota import ObservedLimit
from scheduler.core.reasons import (
    ConcurrencyFull,
    DeadlineUnreachable,
    DoesNotFit,
    GateClosed,
    HeldByPerson,
    LeftoverTooShort,
    NoAllowedPool,
    NotReleased,
    Outbid,
    PoolClosed,
    QuotaEmpty,
    Reason,
)
from scheduler.core.snapshot import JobView, LiveRun, PoolView, Rate, Snapshot
from scheduler.planner.dispatch.dispatcher import dispatch, make_schedule
from scheduler.planner.model.case import make_case
from scheduler.planner.model.policy import PinnedSession, PlanPolicy
from scheduler.planner.planner import plan_week
from scheduler.planner.verify import verify
from tests.lab.planner.cases import EPOCH as NOW
from tests.lab.planner.cases import KAGGLE, SAGEMAKER

TWO_LANES = replace(KAGGLE, devices_per_session=2)


def job(name: str, hours: float, pools: tuple[str, ...] = ("kaggle", "sagemaker"), weight: float = 1.0) -> JobView:
    """A job at one step per second with six minutes of set-up and free checkpoints."""
    return JobView(
        name=name,
        weight=weight,
        target_step=int(hours * HOUR),
        done_step=0,
        needs=Needs(),
        rates=dict.fromkeys(pools, Rate(1.0)),
        setup_seconds=dict.fromkeys(pools, 360),
        checkpoint_seconds=dict.fromkeys(pools, 0),
    )


def case(*jobs: JobView, pools: tuple[Pool, ...] = (TWO_LANES,), days: int = 7) -> Snapshot:
    return Snapshot(NOW, jobs, tuple(PoolView(pool) for pool in pools), days * DAY)


def why(plan: Plan, name: str) -> object:
    return next(deferral.reason for deferral in plan.deferrals if deferral.job == name)


def test_two_one_gpu_jobs_share_a_two_gpu_session() -> None:
    """Side by side they train 60 hours out of a 30 hour week, set-up aside."""
    plan = dispatch(case(job("a", 100), job("b", 100)))
    assert all(len(placement.lanes) == 2 for placement in plan.placements)
    assert sum(placement.end - placement.start for placement in plan.placements) == 30 * HOUR
    trained = sum(planned_lane.steps for placement in plan.placements for planned_lane in placement.lanes)
    assert trained == 2 * (30 * HOUR - 3 * 360)


def test_a_two_gpu_job_takes_both_devices_when_that_pays() -> None:
    """1.9 times the speed beats a partner of a fifth of its weight; 1.1 times does not."""
    wide = replace(job("wide", 100, weight=5), needs=Needs(1, 2))
    fast = dispatch(case(replace(wide, device_speedup=(1.0, 1.9)), job("small", 100)))
    slow = dispatch(case(replace(wide, device_speedup=(1.0, 1.1)), job("small", 100)))
    assert PlannedLane("wide", 2, int((12 * HOUR - 360) * 1.9)) in fast.placements[1].lanes
    assert [planned_lane.devices for planned_lane in slow.placements[0].lanes] == [1, 1]


def test_slow_sharing_is_not_worth_it() -> None:
    """Two lanes at 40 % of their speed make less than one alone."""
    plan = dispatch(case(job("a", 100), job("b", 100), pools=(replace(TWO_LANES, sharing=0.4),)))
    assert all(len(placement.lanes) == 1 for placement in plan.placements)


def test_the_last_pieces_of_a_window_are_made_equal() -> None:
    """25 hours are not cut into 12, 12 and a useless hour."""
    tight = replace(
        TWO_LANES, quotas=(CalendarQuota("week", 24 * HOUR + 900, Calendar("week", "UTC", 5)),), sessions_max=1
    )
    plan = dispatch(case(job("a", 100), pools=(tight,), days=6))
    lengths = [placement.end - placement.start for placement in plan.placements]
    assert sum(lengths) == 24 * HOUR + 900
    assert min(lengths) > 2 * HOUR


def test_a_session_ends_when_its_work_is_done() -> None:
    """An hour of work takes an hour and the set-up, not the session cap."""
    (placement,) = dispatch(case(job("a", 1))).placements
    assert placement.end - placement.start == HOUR + 360


def test_the_horizon_holds_the_children_of_planned_progress() -> None:
    """The child starts when its parent's planned checkpoint passes the gate; nobody starts it now."""
    child = replace(job("child", 2), gate=Gate("parent", 0.5))
    plan = dispatch(case(job("parent", 10), child))
    first = next(p for p in plan.placements for planned_lane in p.lanes if planned_lane.job == "child")
    start = first.start
    assert start == NOW + 360 + 5 * HOUR
    assert why(plan, "child") == GateClosed("parent", 0.0, 0.5, start, planned_pool=first.pool, planned_start=start)


def test_a_gate_passed_by_a_last_checkpoint_waits_for_a_session_that_is_held_longer() -> None:
    """A session that may turn out slow saves last when it ends, and its child starts no sooner."""
    rates = {"kaggle": Rate(1.0, sigma=0.2)}
    parent = replace(job("parent", 2.5, ("kaggle",)), rates=rates, checkpoint_seconds={"kaggle": 60})
    child = replace(job("child", 2, ("kaggle",)), gate=Gate("parent", 1.0))
    snapshot = case(parent, child)
    plan = dispatch(snapshot)
    assert verify(snapshot, plan) == []
    first, second = plan.placements
    assert (first.lanes[0].job, second.lanes[0].job) == ("parent", "child")


def test_a_live_run_holds_its_seat_and_feeds_the_gate_when_its_checkpoint_passes_it() -> None:
    """Expected progress opens the gate later, never now, and not as late as the session ends."""
    run = LiveRun("key", NOW - HOUR, NOW + 6 * HOUR, NOW + 6 * HOUR, ("parent",))
    view = PoolView(TWO_LANES, (Charge(run.start, run.held_until, held=True, run="key"),), (run,))
    parent = replace(job("parent", 10), running="key", done_step=HOUR // 2)
    child = replace(job("child", 2), gate=Gate("parent", 0.5))
    plan = dispatch(Snapshot(NOW, (parent, child), (view,)))
    starts = {planned_lane.job: p.start for p in reversed(plan.placements) for planned_lane in p.lanes}
    assert starts == {"parent": NOW + 6 * HOUR, "child": NOW + 9 * HOUR // 2}  # half an hour of five is done


def test_the_pool_of_last_time_is_preferred() -> None:
    """Of two equal pools the job returns to the one it knows."""
    twin = replace(SAGEMAKER, name="z-sagemaker")
    again = replace(job("a", 100, ("sagemaker", "z-sagemaker")), last_pool="z-sagemaker")
    plan = dispatch(case(again, pools=(SAGEMAKER, twin)))
    assert plan.placements[0].pool == "z-sagemaker"


def test_equal_jobs_keep_the_order_of_the_queue() -> None:
    """Worth alike, the one ahead in the queue starts."""
    first = replace(job("z", 10), position=1)
    second = replace(job("a", 10), position=2)
    plan = dispatch(case(first, second, pools=(SAGEMAKER,)))
    assert plan.placements[0].lanes[0].job == "z"


def test_shutting_a_pool_moves_the_work() -> None:
    """A closed pool gets nothing until it opens again."""
    view = PoolView(SAGEMAKER, closed_until=NOW + DAY, closed_why="refused three times")
    plan = dispatch(Snapshot(NOW, (job("a", 20),), (view,)))
    assert plan.placements[0].start == NOW + DAY
    reason = PoolClosed("sagemaker", "refused three times", NOW + DAY)
    assert why(plan, "a") == replace(reason, planned_pool="sagemaker", planned_start=NOW + DAY)


FULL = PoolView(
    SAGEMAKER, (Charge(NOW - HOUR, NOW + HOUR, run="k"),), (LiveRun("k", NOW - HOUR, NOW + HOUR, NOW + HOUR, ()),)
)
EMPTY = PoolView(SAGEMAKER, (Charge(NOW, NOW + 4 * HOUR),))
SCRAP = PoolView(SAGEMAKER, (Charge(NOW, NOW + 4 * HOUR - 600),))
OPEN = PoolView(SAGEMAKER)


@pytest.mark.parametrize(
    ("view", "changes", "reason"),
    [
        (OPEN, {"blocked": HeldByPerson("ann", "rests")}, HeldByPerson("ann", "rests")),
        (OPEN, {"not_before": NOW + HOUR}, NotReleased(NOW + HOUR, "not to start")),
        (OPEN, {"retry_at": NOW + HOUR}, NotReleased(NOW + HOUR, "waits after a failure")),
        (OPEN, {"gate": Gate("gone", 0.5)}, GateClosed("gone", 0.0, 0.5)),
        (OPEN, {"allowed_pools": ("moon",)}, NoAllowedPool(("moon",))),
        (
            OPEN,
            {"needs": Needs(vram_gib=80)},
            DoesNotFit("1 x 80 GiB, fp32", "1 x 16 GiB, fp16, fp32 (sagemaker)"),
        ),
        (
            OPEN,
            {"needs": Needs(accelerator="tpu")},
            DoesNotFit("1 x 0 GiB, fp32, TPU", "1 x 16 GiB, fp16, fp32, GPU (sagemaker)"),
        ),
        (EMPTY, {"deadline": NOW + HOUR}, DeadlineUnreachable(NOW + HOUR, 4.0, 1.0)),
        (EMPTY, {}, QuotaEmpty("sagemaker", "day", NOW + DAY)),
        (FULL, {}, ConcurrencyFull("sagemaker", 1, NOW + HOUR)),
        (SCRAP, {}, LeftoverTooShort("sagemaker", 600, 2_160)),
    ],
)
def test_a_waiting_job_has_the_first_reason_that_applies(
    view: PoolView, changes: dict[str, object], reason: object
) -> None:
    waiting = replace(job("a", 10), **changes)  # type: ignore[arg-type]
    found = why(dispatch(Snapshot(NOW, (waiting,), (view,))), "a")
    if isinstance(found, DeadlineUnreachable):
        found = replace(found, hours_needed=4.0)
    assert isinstance(found, Reason)
    assert replace(found, planned_pool="", planned_start=None, unplanned_until=None) == reason


def test_the_loser_of_a_session_is_told_who_won() -> None:
    plan = dispatch(case(job("a", 1, weight=2), job("b", 1), pools=(SAGEMAKER,)))
    assert why(plan, "b") == Outbid(
        "sagemaker", "a", None, None, planned_pool="sagemaker", planned_start=plan.placements[1].start
    )


def test_sensible_plans_for_odd_weeks() -> None:
    """No job, no pool, no quota, a job larger than the year, a thousand equal jobs."""
    none = replace(SAGEMAKER, quotas=(CalendarQuota("day", 0, Calendar("day")),))
    assert plan_week(Snapshot(NOW, (), ())).placements == ()
    assert why(plan_week(case(job("a", 1), pools=())), "a") == NoAllowedPool(())
    assert isinstance(why(plan_week(case(job("a", 1, ("sagemaker",)), pools=(none,))), "a"), QuotaEmpty)
    large = case(job("a", 20_000))
    assert sum(p.end - p.start for p in plan_week(large).placements) == 30 * HOUR
    equal = case(*(job(f"job-{number:04}", 3) for number in range(1_000)))
    plan = plan_week(equal)
    assert len(plan.due_now) + len(plan.deferrals) >= 998
    assert verify(equal, plan) == []


def test_the_verifier_sees_what_a_wrong_plan_does() -> None:
    """Over quota, two sessions of one job at once, a session too long, a lane too many, work that cannot be."""
    snapshot = case(job("a", 5), pools=(SAGEMAKER,))
    planned_lane = PlannedLane("a", 1, 1_800)
    hour = Placement("sagemaker", NOW, NOW + HOUR, (planned_lane,))

    def violations(*placements: Placement) -> str:
        return "; ".join(verify(snapshot, Plan(NOW, placements, ())))

    assert violations(hour) == ""
    assert "2 sessions" in violations(hour, hour)
    assert "runs until" in violations(hour, hour)
    assert "exceeds the longest session" in violations(replace(hour, end=NOW + 5 * HOUR))
    assert "of 14400 used" in violations(
        replace(hour, end=NOW + 4 * HOUR), replace(hour, start=NOW + 5 * HOUR, end=NOW + 6 * HOUR)
    )
    assert "more devices" in violations(replace(hour, lanes=(planned_lane, replace(planned_lane, job="a"))))
    assert "s for 4,000 steps" in violations(replace(hour, lanes=(PlannedLane("a", 1, 4_000),)))
    assert "not worth" in violations(replace(hour, lanes=(PlannedLane("a", 1, 60),)))
    assert "outside the horizon" in violations(replace(hour, start=NOW - 1))
    assert "no such pool" in violations(replace(hour, pool="moon"))


def test_the_plan_reaches_to_the_horizon() -> None:
    """A week of four hours a day is seven sessions of the whole quota."""
    plan = dispatch(case(job("a", 100, ("sagemaker",)), pools=(SAGEMAKER,)))
    assert [p.start - NOW for p in plan.placements] == [day * DAY for day in range(7)]
    assert plan.placements[-1].end <= NOW + WEEK


def test_a_left_over_that_a_slow_start_could_swallow_is_not_used() -> None:
    """Half an hour of training fits it, but not after the set-up and the save that one in ten sessions has."""
    long = replace(job("a", 100), setup_seconds={"kaggle": 1_800}, checkpoint_seconds={"kaggle": 300})
    unsure = replace(long, setup_sigma={"kaggle": 0.5}, checkpoint_sigma={"kaggle": 0.5})
    shortest = 1_800 + 300 + KAGGLE.stop_margin_seconds + KAGGLE.session_seconds_min
    assert placed_within(long, shortest) == [shortest]
    assert placed_within(long, shortest - 1) == []
    late = 1_365  # 1.3 x 0.5 of both
    assert placed_within(unsure, shortest + late - 1) == []
    assert placed_within(unsure, shortest + late) == [shortest + late]


def test_a_last_session_is_tried_where_a_slow_start_leaves_room_for_it() -> None:
    last = replace(job("a", 0.1), setup_seconds={"kaggle": 1_800}, setup_sigma={"kaggle": 0.5})
    needed = 1_800 + 360 + KAGGLE.stop_margin_seconds
    assert placed_within(last, needed + 1_169) == []
    assert placed_within(last, needed + 1_170) == [needed + 1_170]


def test_a_session_as_long_as_the_pool_allows_is_tried_whatever_a_slow_start_takes() -> None:
    """Otherwise nothing would ever be seen there again that could teach better."""
    hopeless = replace(job("a", 100), setup_seconds={"kaggle": 20_000}, setup_sigma={"kaggle": 2.0})
    assert placed_within(hopeless, KAGGLE.session_cap_seconds - 1) == []
    assert placed_within(hopeless, KAGGLE.session_cap_seconds) == [KAGGLE.session_cap_seconds]


def placed_within(view: JobView, room: int) -> list[int]:
    """The lengths of a day's sessions where ``room`` seconds of a window are left."""
    pool = replace(KAGGLE, quotas=(CalendarQuota("week", 30 * HOUR, Calendar("week")),), overrun_seconds=0)
    left = ObservedLimit("week", NOW - WEEK, NOW + WEEK, room, NOW)
    snapshot = Snapshot(NOW, (view,), (PoolView(pool, observed=(left,)),), DAY)
    return [found.end - found.start for found in dispatch(snapshot).placements]


def test_the_sessions_of_an_earlier_plan_come_in_their_order() -> None:
    """A pool that is free before its time takes no job that is due elsewhere now."""
    planned = make_case(case(job("long", 8), pools=(KAGGLE, SAGEMAKER)))
    pins = {0: (PinnedSession(NOW + 4 * HOUR, (0,), 4 * HOUR),), 1: (PinnedSession(NOW, (0,), 4 * HOUR),)}
    placed = make_schedule(planned, PlanPolicy(pinned=pins)).placements
    assert [(one.pool, one.start) for one in placed[:2]] == [("sagemaker", NOW), ("kaggle", NOW + 4 * HOUR)]


@pytest.mark.parametrize(("used", "begins"), [(3, 23), (0, 0)])
def test_a_session_of_an_earlier_plan_comes_early_only_as_a_whole(used: int, begins: int) -> None:
    """An hour that is left of today and three of tomorrow make one session: it waits until midnight is near."""
    charges = (Charge(NOW, NOW + used * HOUR),) if used else ()
    later = Snapshot(NOW + used * HOUR, (job("long", 8),), (PoolView(SAGEMAKER, charges),))
    pins = {0: (PinnedSession(NOW + 23 * HOUR, (0,), 4 * HOUR),)}
    placed = make_schedule(make_case(later), PlanPolicy(pinned=pins)).placements
    assert (placed[0].start, placed[0].end) == (NOW + begins * HOUR, NOW + (begins + 4) * HOUR)


def test_only_jobs_that_say_so_are_planned_on_a_tpu() -> None:
    """And a job that needs one waits for it, however much room the other pools have."""
    tpu = replace(SAGEMAKER, name="tpu", accelerator="TPU v5e-8")
    pools = ("sagemaker", "tpu")
    jobs = [replace(job(kind, 8, pools), needs=Needs(accelerator=kind)) for kind in ("gpu", "tpu", "any")]
    snapshot = case(*jobs, pools=(SAGEMAKER, tpu))
    for plan in (dispatch(snapshot), plan_week(snapshot)):
        planned = {(lane.job, one.pool) for one in plan.placements for lane in one.lanes}
        assert {pool for name, pool in planned if name == "gpu"} == {"sagemaker"}
        assert {pool for name, pool in planned if name == "tpu"} == {"tpu"}
        assert "any" in {name for name, _ in planned}
        assert not verify(snapshot, plan)
