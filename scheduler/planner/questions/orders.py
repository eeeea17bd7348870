"""Orders: plans by simpler rules, for comparison."""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.plan import Plan
from scheduler.core.snapshot import Snapshot
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.dispatch.orders import in_order
from scheduler.planner.dispatch.waiting import deferrals
from scheduler.planner.model.case import make_case
from scheduler.planner.model.policy import PLAIN
from scheduler.planner.model.value import value
from scheduler.planner.questions.timetable import timetable
from scheduler.planner.verify import verify

STATIC = "static"
DENSITY = "density"
# The rules that can make a plan instead of the planner, with a description for users.
POLICIES: dict[str, str] = {
    STATIC: "the same sessions every week, jobs in fixed turns, nothing planned again",
    "fifo": "the front of the queue first",
    "edf": "the next deadline first",
    "priority": "the largest weight first",
    "srtf": "the least work left first",
    "smith": "the largest weight per hour of work left first",
    DENSITY: "what makes most of an hour now first",
}


def plan_by(snapshot: Snapshot, policy: str) -> Plan:
    """Return the plan of ``snapshot`` by ``policy``, one of POLICIES; raises KeyError for any other name.

    A missed deadline only costs value here. Violations are returned as warnings of the plan.
    """
    case = make_case(snapshot, firm_deadlines=False)
    if policy == STATIC:
        placements = timetable(case)
        plan = Plan(
            made_at=snapshot.now,
            placements=placements,
            deferrals=deferrals(case, placements, {}),
            value=value(snapshot, placements),
        )
    else:
        plan = dispatch(snapshot, PLAIN if policy == DENSITY else in_order(policy), case)
    return replace(plan, made_by=policy, warnings=tuple(verify(snapshot, plan)))
