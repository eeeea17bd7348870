"""What the priced plan leaves over is used, targets choose between equals, work keeps its worth after the horizon."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.nouns.quota import FirstUseQuota, RollingQuota
from jobs.nouns.window import DAY, HOUR, WEEK
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.snapshot import JobView, PoolView, Rate, Snapshot
from scheduler.planner.dispatch.dispatcher import fill_gaps
from scheduler.planner.model.case import make_case
from scheduler.planner.model.policy import Schedule
from scheduler.planner.model.pool_capacity import PoolCapacity
from scheduler.planner.planner import Planner, PlannerOptions, plan_week
from scheduler.planner.search.candidates import priced_candidates
from scheduler.planner.verify import verify
from tests.lab.planner.cases import EPOCH as NOW
from tests.lab.planner.cases import KAGGLE, SAGEMAKER
from tests.lab.planner.small import job


def snapshot(*jobs: JobView, pools: tuple[PoolView, ...] = (PoolView(KAGGLE), PoolView(SAGEMAKER))) -> Snapshot:
    placed = tuple(replace(view, position=number) for number, view in enumerate(jobs))
    return Snapshot(NOW, placed, pools, WEEK)


def session(job_name: str, start_hour: int, hours: int, pool: str = "kaggle") -> Placement:
    start = NOW + start_hour * HOUR
    return Placement(pool, start, start + hours * HOUR, (PlannedLane(job_name, 1, (hours - 1) * HOUR),))


def test_hours_left_over_go_to_whoever_can_use_them() -> None:
    """What is booked stays as it is; the rest of the quota is used around it."""
    week = snapshot(job("a", 8, 40), job("b", 1, 40), pools=(PoolView(KAGGLE),))
    booked = Schedule((session("a", 10, 12),), {})
    filled = fill_gaps(make_case(week), booked)
    assert set(booked.placements) < set(filled.placements)
    assert verify(week, Plan(NOW, filled.placements, ())) == []
    assert sum(p.end - p.start for p in filled.placements) > 29 * HOUR
    assert all(
        p.start >= NOW + 22 * HOUR for p in filled.placements if p.lanes[0].job == "a" and p not in booked.placements
    )


def test_a_session_before_booked_ones_ends_where_they_need_its_place() -> None:
    """Two places: one booked session may be overlapped, a second one not."""
    capacity = PoolCapacity(PoolView(KAGGLE), NOW, NOW + WEEK)
    capacity.book(NOW + 5 * HOUR, NOW + 8 * HOUR)
    assert capacity.room(NOW).seconds == 12 * HOUR
    capacity.book(NOW + 6 * HOUR, NOW + 9 * HOUR)
    assert capacity.room(NOW).seconds == 6 * HOUR
    assert capacity.room(NOW + 7 * HOUR).seconds == 0
    assert capacity.room(NOW + 8 * HOUR).seconds == 12 * HOUR


def test_booked_sessions_hold_their_quota() -> None:
    """What a session takes later in the window is not there before."""
    capacity = PoolCapacity(PoolView(KAGGLE), NOW, NOW + WEEK)
    for hour in (48, 72):
        capacity.book(NOW + hour * HOUR, NOW + (hour + 12) * HOUR)
    assert capacity.room(NOW).seconds == 6 * HOUR


@pytest.mark.parametrize("kind", [RollingQuota, FirstUseQuota])
def test_a_session_before_booked_ones_leaves_them_what_a_moving_quota_gives(
    kind: type[RollingQuota | FirstUseQuota],
) -> None:
    """Two hours of the four are booked, for noon; a session a day before takes nothing from them."""
    capacity = PoolCapacity(PoolView(replace(KAGGLE, quotas=(kind("day", 4 * HOUR, DAY),))), NOW, NOW + WEEK)
    assert capacity.room(NOW + 12 * HOUR).seconds == 4 * HOUR
    capacity.book(NOW + 48 * HOUR, NOW + 50 * HOUR)
    assert capacity.room(NOW + 12 * HOUR).seconds == 4 * HOUR
    assert capacity.room(NOW + 36 * HOUR).seconds == 2 * HOUR
    assert capacity.room(NOW + 49 * HOUR).seconds == 2 * HOUR
    assert capacity.room(NOW + 72 * HOUR).seconds == 4 * HOUR


@pytest.mark.parametrize("quota", [RollingQuota("day", 4 * HOUR), FirstUseQuota("day", 4 * HOUR)])
def test_pools_whose_quotas_move_are_filled_again_and_again(quota: RollingQuota | FirstUseQuota) -> None:
    """One session is booked ahead: it used to be the pool's last."""
    desk = replace(KAGGLE, name="kaggle", quotas=(quota,), sessions_max=1)
    week = snapshot(job("a", 4, 40), *(job(f"b{number}", 1, 4) for number in range(6)), pools=(PoolView(desk),))
    booked = Schedule((session("a", 50, 2),), {})
    filled = fill_gaps(make_case(week), booked)
    assert set(booked.placements) < set(filled.placements)
    assert verify(week, Plan(NOW, filled.placements, ())) == []
    assert sum(placed.end - placed.start for placed in filled.placements) > 0.8 * 7 * 4 * HOUR


def test_the_week_of_the_seeds_leaves_next_to_nothing() -> None:
    """Prices alone reach 0.991 and leave a piece of the quota; filled up it is 0.995 of the bound."""
    managers = (job(f"m{n}", weight, 12) for n, weight in enumerate((4, 4, 3, 3, 2, 2)))
    plan = plan_week(snapshot(job("main", 8, 60, 1.6), *managers))
    assert plan.bound is not None
    assert plan.value >= 0.994 * plan.bound


def test_targets_are_among_the_candidates_and_make_more_of_unequal_pools() -> None:
    """Densest first gives the pool of both jobs to the one that could as well work elsewhere."""
    only_kaggle = replace(job("tied", 4, 30), allowed_pools=("kaggle",), rates={"kaggle": Rate(1.0)})
    week = snapshot(job("free", 4, 60, 1.1), replace(only_kaggle, position=1), job("late", 1, 60))
    planner = Planner(PlannerOptions(search_steps=0))
    found = planner.choose(make_case(week), None, [])
    assert found.prices.targets
    with_targets = priced_candidates(make_case(week), found.prices, [found.candidate.policy])
    found.prices.targets = {}
    without = priced_candidates(make_case(week), found.prices, [found.candidate.policy])
    assert len(with_targets) > len(without)
    assert max(c.score for c in with_targets) >= max(c.score for c in without)
