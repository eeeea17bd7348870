"""Feasibility: what would keep a job from ever starting, found when it is added and not a week later."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from scheduler.core.plan import Plan
from scheduler.core.reasons import DeadlineUnreachable, DoesNotFit, NoAllowedPool, Reason, SecretMissing
from scheduler.core.snapshot import JobView, Snapshot
from scheduler.core.window import DAY
from scheduler.planner import dispatch

_LASTING = (NoAllowedPool, DoesNotFit, SecretMissing)
_FORESEEN_SECONDS = 60 * DAY  # a deadline farther off is not judged yet


def obstacles(snapshot: Snapshot, names: Collection[str]) -> dict[str, Reason]:
    """Return, for those of the named jobs that no waiting will start, the reason.

    The dispatcher is asked about these jobs alone, as if their gates were open and their earliest start had come: it
    names the first reason that applies, and those two come before the lasting ones.
    """
    asked = tuple(
        replace(view, gate=None, not_before=None, retry_at=None) for view in snapshot.jobs if view.name in names
    )
    found = dispatch(replace(snapshot, jobs=asked))
    return {deferral.job: deferral.reason for deferral in found.deferrals if isinstance(deferral.reason, _LASTING)}


def late(snapshot: Snapshot, names: Collection[str]) -> dict[str, Reason]:
    """Return, for those of the named jobs that no plan can finish before their deadline, what there is and is needed.

    Each is planned alone, with its gate open, on all hours that nothing has used; other jobs only take from that.
    """
    found: dict[str, Reason] = {}
    for view in snapshot.jobs:
        ahead = None if view.deadline is None else view.deadline - snapshot.now
        if view.name not in names or view.deadline is None or ahead is None or ahead > _FORESEEN_SECONDS:
            continue
        speed = max((view.speed(pool, view.needs.devices_max) for pool in view.rates), default=0.0)
        if not speed or view.remaining_steps <= 0:
            continue
        alone = replace(view, gate=None, retry_at=None, blocked=None)
        plan = dispatch(replace(snapshot, jobs=(alone,), horizon_seconds=max(1, ahead))) if ahead > 0 else None
        steps = _steps_before(plan, view, view.deadline) if plan is not None else 0
        if steps < view.remaining_steps:
            hours = 3_600 * speed
            found[view.name] = DeadlineUnreachable(view.deadline, view.remaining_steps / hours, steps / hours)
    return found


def _steps_before(plan: Plan, view: JobView, deadline: int) -> int:
    """Return what a plan trains of a job by ``deadline``; a session that goes on after it counts in proportion."""
    steps = 0.0
    for placement in plan.placements:
        share = min(1.0, (deadline - placement.start) / max(1, placement.end - placement.start))
        steps += sum(planned_lane.steps for planned_lane in placement.lanes if planned_lane.job == view.name) * max(
            0.0, share
        )
    return round(steps)
