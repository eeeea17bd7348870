"""The list dispatcher: standard library only, always at hand, and the last step of every other planner.

It walks through time from now to the horizon. Wherever a pool has room it starts the waiting job that makes most of
an hour there, weight * speed * (1 - overhead), ties to the job that finishes soonest per weight, then to the name.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.plan import Plan
from scheduler.core.snapshot import Snapshot
from scheduler.planner.dispatch.waiting import deferrals
from scheduler.planner.dispatch.walk import Walk
from scheduler.planner.model.case import Case, make_case
from scheduler.planner.model.policy import PLAIN, Policy, Schedule
from scheduler.planner.model.value import value


def dispatch(snapshot: Snapshot, policy: Policy = PLAIN, case: Case | None = None) -> Plan:
    """Return the dispatcher's plan for ``snapshot``; the same input gives the same plan in whatever order."""
    case = case or make_case(snapshot)
    schedule = make_schedule(case, policy)
    return Plan(
        made_at=snapshot.now,
        placements=schedule.placements,
        deferrals=deferrals(case, schedule.placements, schedule.gate_passes),
        value=value(snapshot, schedule.placements),
    )


def make_schedule(case: Case, policy: Policy = PLAIN) -> Schedule:
    """Return the sessions alone: what candidate plans are compared by."""
    return Walk(case, policy).run()


def extend(case: Case, schedule: Schedule, policy: Policy) -> Schedule:
    """Return ``schedule`` with further sessions in the hours it leaves unused, as ``policy`` wants them.

    Nothing it holds is moved. A job comes after its own last session, in the gaps of pools.
    """
    return Walk(case, policy, schedule).run()


def make_full_schedule(case: Case, policy: Policy, schedule: Schedule | None = None) -> Schedule:
    """Return what ``policy`` makes of ``case`` or adds to ``schedule``, and the hours that its prices leave filled."""
    walk = Walk(case, policy, schedule)
    schedule_before_gaps = walk.run()
    return fill_gaps(case, schedule_before_gaps, policy) if walk.leaves_room else schedule_before_gaps


def fill_gaps(case: Case, schedule: Schedule, policy: Policy = PLAIN) -> Schedule:
    """Return ``schedule`` extended by whoever can use its hours, whatever they are worth."""
    return extend(case, schedule, replace(policy, admits=None, pinned={}))
