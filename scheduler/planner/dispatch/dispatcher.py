"""The list dispatcher. It needs only the standard library, and every other layer ends with it.

It walks through time from now to the horizon. When a pool has room it starts the waiting job of the highest density
there, priority * speed * (1 - overhead). Ties go to the job with the best Smith ratio, then to the queue position.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.plan import Plan
from scheduler.core.snapshot import Snapshot
from scheduler.planner.dispatch.waiting import deferrals
from scheduler.planner.dispatch.walk import Walk
from scheduler.planner.model.case import Case, make_case
from scheduler.planner.model.policy import PLAIN, PlanPolicy, Schedule
from scheduler.planner.model.value import value


def dispatch(snapshot: Snapshot, policy: PlanPolicy = PLAIN, case: Case | None = None) -> Plan:
    """Return the dispatcher's plan for ``snapshot``; the order of its jobs and pools does not matter."""
    case = case or make_case(snapshot)
    schedule = make_schedule(case, policy)
    return Plan(
        made_at=snapshot.now,
        placements=schedule.placements,
        deferrals=deferrals(case, schedule.placements, schedule.gate_passes),
        value=value(snapshot, schedule.placements),
    )


def make_schedule(case: Case, policy: PlanPolicy = PLAIN) -> Schedule:
    """Return the schedule that ``policy`` makes of ``case``."""
    return Walk(case, policy).run()


def extend(case: Case, schedule: Schedule, policy: PlanPolicy) -> Schedule:
    """Return ``schedule`` with further sessions by ``policy`` in its unused hours.

    No session is moved. A further session of a job starts after the job's last one.
    """
    return Walk(case, policy, schedule).run()


def make_full_schedule(case: Case, policy: PlanPolicy, schedule: Schedule | None = None) -> Schedule:
    """Return the schedule of ``policy``, or ``schedule`` extended by it; hours refused by price are then filled."""
    walk = Walk(case, policy, schedule)
    schedule_before_gaps = walk.run()
    return fill_gaps(case, schedule_before_gaps, policy) if walk.leaves_room else schedule_before_gaps


def fill_gaps(case: Case, schedule: Schedule, policy: PlanPolicy = PLAIN) -> Schedule:
    """Return ``schedule`` extended in all unused hours, without prices."""
    return extend(case, schedule, replace(policy, admits=None, pinned={}))
