"""Whatever the jobs and pools are: the plain dispatcher breaks no rule and stalls nowhere."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hypothesis import given, settings

from scheduler.core.admission import room
from scheduler.core.ledger import Charge
from scheduler.core.reasons import DoesNotFit, GateClosed, HeldByPerson, NoAllowedPool
from scheduler.core.snapshot import Snapshot
from scheduler.core.throughput import SURENESS
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.model.pool_capacity import PoolCapacity
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.planner.verify import verify
from tests.lab.night import share
from tests.lab.planner.strategies import snapshots

if TYPE_CHECKING:
    from scheduler.core.plan import Placement, Plan


@given(snapshots())
@settings(max_examples=share(150))
def test_the_plain_dispatcher_breaks_no_rule(snapshot: Snapshot) -> None:
    """The independent verifier finds nothing, each session has room in its turn, and no room is left beside a job."""
    plan = dispatch(snapshot)
    assert verify(snapshot, plan) == []
    admission_says_yes_to_every_session_in_turn(snapshot, plan)
    nobody_waits_beside_a_free_session(snapshot, plan)


@given(snapshots())
@settings(max_examples=share(150))
def test_each_reason_ends_with_where_and_when_the_job_is_planned_and_names_that_pool(snapshot: Snapshot) -> None:
    """But for reasons that only a person can resolve; these name neither."""
    plan = Planner(PlannerOptions(search_steps=0)).plan(snapshot)
    first: dict[str, Placement] = {}
    for placement in sorted(plan.placements, key=lambda one: one.start):
        for lane in placement.lanes:
            first.setdefault(lane.job, placement)
    open_jobs = {job.name for job in snapshot.jobs}
    for deferral in plan.deferrals:
        reason, planned = deferral.reason, first.get(deferral.job)
        shut = isinstance(reason, GateClosed) and reason.parent not in open_jobs
        if shut or isinstance(reason, NoAllowedPool | DoesNotFit | HeldByPerson):
            assert planned is None
        elif planned is None:
            assert "; cannot be planned before " in reason.sentence()
        else:
            assert (reason.planned_pool, reason.planned_start) == (planned.pool, planned.start)
            assert f"; planned on {planned.pool} at " in reason.sentence()
            assert getattr(reason, "pool", planned.pool) == planned.pool


def admission_says_yes_to_every_session_in_turn(snapshot: Snapshot, plan: Plan) -> None:
    """Replayed one by one through core.admission, each session of the plan has room."""
    for view in snapshot.pools:
        charges, ends = list(view.charges), [run.held_until for run in view.live]
        for placement in plan.placements:
            if placement.pool != view.pool.name:
                continue
            length = placement.end - placement.start + view.pool.overrun_seconds
            assert room(view.pool, charges, ends, placement.start, view.observed).seconds >= length
            ends.append(placement.end + view.pool.overrun_seconds)
            price = view.pool.price_microdollars_per_hour
            charges.append(Charge(placement.start, ends[-1], price_microdollars_per_hour=price))


def nobody_waits_beside_a_free_session(snapshot: Snapshot, plan: Plan) -> None:
    """If a startable job could use the room that the plan leaves now, the plan is wrong."""
    waiting = {deferral.job: deferral.reason.code for deferral in plan.deferrals}
    room_left = _room_left(snapshot, plan)
    for job in snapshot.jobs:
        if waiting.get(job.name) not in {"outbid", "concurrency", "quota_empty", "leftover_too_short", "pool_closed"}:
            continue
        for view in snapshot.pools:
            usable = not job.allowed_pools or view.pool.name in job.allowed_pools
            fits = job.needs.devices_min <= view.pool.devices_per_session and job.needs.vram_gib <= view.pool.vram_gib
            sigma = max(job.setup_sigma.get(view.pool.name, 0.0), job.checkpoint_sigma.get(view.pool.name, 0.0))
            unsure = 1 + SURENESS * sigma  # how much longer than known set-up and checkpoint must be allowed to take
            long_enough = view.pool.session_seconds_min + round((1_800 + 300) * unsure) + 300 + 200
            assert not (usable and fits and room_left[view.pool.name] > long_enough)


def _room_left(snapshot: Snapshot, plan: Plan) -> dict[str, int]:
    taken = defaultdict(list)
    for placement in plan.due_now:
        taken[placement.pool].append(placement)
    left = {}
    for view in snapshot.pools:
        capacity = PoolCapacity(view, snapshot.now, snapshot.now + snapshot.horizon_seconds)
        for placement in taken[view.pool.name]:
            capacity.start_session(placement.start, placement.end)
        left[view.pool.name] = capacity.room(snapshot.now).seconds
    return left
