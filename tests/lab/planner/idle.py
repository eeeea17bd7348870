"""Idle: pools that a plan leaves unused now though a waiting job could use them, by verifier and admission alone.

A pool with room, hours that are lost unless somebody takes them, and a job that could: such a pool must not stand
still. What may keep it waiting is only that no session worth a launch fits beside what is planned. The verifier takes
charges as they are written; admission, which has the last word at a launch, allows for those whose time nobody told.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import ceil, sqrt
from typing import TYPE_CHECKING

from jobs.nouns.quota import CalendarQuota, MoneyQuota
from scheduler.core.admission import room
from scheduler.core.ledger import Charge
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.planner.verify import verify

if TYPE_CHECKING:
    from scheduler.core.snapshot import JobView, PoolView, Snapshot

# Nine of ten set-ups and saves take at most so many of their standard deviations more than the mean.
_SURENESS = 1.3
# What rounding may cost: a session that is useful only to the second is not asked for.
_SLACK_SECONDS = 120


def idle(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Return a sentence for every pool and job that could start now beside all that is planned, and does not."""
    live = {name for view in snapshot.pools for run in view.live for name in run.jobs}
    started = {
        planned_lane.job for placed in plan.placements if placed.start <= snapshot.now for planned_lane in placed.lanes
    }
    ready = [
        job
        for job in snapshot.jobs
        if job.name not in live
        and job.name not in started
        and job.running is None
        and job.blocked is None
        and job.remaining_steps > 0
        and max(job.not_before or 0, job.retry_at or 0) <= snapshot.now
    ]
    return [
        f"{view.pool.name} stands still though {job.name} could train there for {found.end - found.start} s"
        for view in snapshot.pools
        if _is_lost_otherwise(snapshot, view)
        for job in ready
        if (found := _session(snapshot, view, job, plan)) is not None
    ]


def _is_lost_otherwise(snapshot: Snapshot, view: PoolView) -> bool:
    """Tell whether hours that nobody takes now are gone, or come back, before the horizon, and cost nothing."""
    if view.closed_until is not None and view.closed_until > snapshot.now:
        return False
    until = snapshot.now + snapshot.horizon_seconds
    for quota in view.pool.quotas:
        if isinstance(quota, MoneyQuota):
            if view.pool.price_microdollars_per_hour > 0:
                return False
        elif isinstance(quota, CalendarQuota):
            (window, *_) = quota.calendar.windows(snapshot.now, snapshot.now + 1)
            if window.end > until:
                return False
        elif quota.span_seconds > snapshot.horizon_seconds:
            return False
    return True


def _session(snapshot: Snapshot, view: PoolView, job: JobView, plan: Plan) -> Placement | None:
    """Return the shortest session of ``job`` that is worth a launch if it can be added now, or None."""
    pool, now = view.pool, snapshot.now
    devices, rate = job.needs.devices_min, job.rates.get(pool.name)
    if rate is None or rate.steps_per_second <= 0 or devices > pool.devices_per_session:
        return None
    speed = job.speed(pool.name, devices)
    save = job.checkpoint_seconds[pool.name]
    every = sqrt(2.0 * save * pool.mtbf_seconds)
    least = ceil(pool.session_seconds_min + 1 / speed + 1)
    steps = min(job.remaining_steps, ceil(least * speed) + 1)
    trained = steps / speed
    saves = max(1.0, trained / every) * save if save else 0.0
    risk = _SURENESS * job.setup_sigma.get(pool.name, 0.0) * job.setup_seconds[pool.name]
    risk += _SURENESS * job.checkpoint_sigma.get(pool.name, 0.0) * save
    length = ceil(job.setup_seconds[pool.name] + trained + saves + pool.stop_margin_seconds + risk) + _SLACK_SECONDS
    own = [
        placed.start for placed in plan.placements if any(planned_lane.job == job.name for planned_lane in placed.lanes)
    ]
    if length > pool.session_cap_seconds or now + length > min(own, default=now + length):
        return None
    added = Placement(pool.name, now, now + length, (PlannedLane(job.name, devices, steps),))
    others = _trimmed(plan.placements, job, steps)
    if not _is_admitted(snapshot, view, added, others):
        return None
    known = Counter(verify(snapshot, replace(plan, placements=others)))
    found = Counter(verify(snapshot, replace(plan, placements=(*others, added))))
    return added if not found - known else None


def _is_admitted(snapshot: Snapshot, view: PoolView, added: Placement, others: tuple[Placement, ...]) -> bool:
    """Tell whether ``added`` could be launched now, with what is planned on its pool held in the books."""
    overrun = view.pool.overrun_seconds
    planned = [Charge(one.start, one.end + overrun, held=True) for one in others if one.pool == added.pool]
    ends = [run.held_until for run in view.live]
    found = room(view.pool, [*view.charges, *planned], ends, snapshot.now, view.observed)
    return added.end - added.start + overrun <= found.seconds


def _trimmed(placements: tuple[Placement, ...], job: JobView, steps: int) -> tuple[Placement, ...]:
    """Return ``placements`` with so few steps of ``job``, from the last ones, that ``steps`` more can be added."""
    planned = sum(
        planned_lane.steps for placed in placements for planned_lane in placed.lanes if planned_lane.job == job.name
    )
    over = planned + steps - job.remaining_steps
    kept: list[Placement] = []
    for placed in sorted(placements, key=lambda found: -found.start):
        planned_lanes = []
        for planned_lane in placed.lanes:
            less = min(planned_lane.steps, max(0, over)) if planned_lane.job == job.name else 0
            over -= less
            if planned_lane.steps > less:
                planned_lanes.append(replace(planned_lane, steps=planned_lane.steps - less))
        if planned_lanes:
            kept.append(replace(placed, lanes=tuple(planned_lanes)))
    return tuple(kept)
