"""Orders: simpler policies that a plan may be compared with, each a rank that replaces the density of a job."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from scheduler.core.plan import Plan
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.dispatch.waiting import deferrals
from scheduler.planner.model.case import make_case
from scheduler.planner.model.policy import PLAIN, Policy
from scheduler.planner.model.value import reference_rate, value
from scheduler.planner.questions.timetable import timetable
from scheduler.planner.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.core.snapshot import JobView, Snapshot
    from scheduler.planner.model.case import Case

    Order = Callable[[JobView], float]

# Above every position and instant, so that ranks stay positive.
_TOP = 1e12


def first_in_first_out(job: JobView) -> float:
    """Larger goes first: the front of the queue."""
    return _TOP - job.position


def earliest_deadline_first(job: JobView) -> float:
    """Larger goes first: the next deadline, then the front of the queue."""
    return 2 * _TOP - job.deadline if job.deadline is not None else _TOP - _TOP / 2 - job.position


def strict_priority(job: JobView) -> float:
    """Larger goes first: the weight, then the front of the queue."""
    return job.weight * 1e9 - job.position


def smith_ratio(job: JobView) -> float:
    """Larger goes first: the weight per hour of work that is left."""
    return job.weight * reference_rate(job) / max(1, job.remaining_steps)


ORDERS: dict[str, Order] = {
    "fifo": first_in_first_out,
    "edf": earliest_deadline_first,
    "priority": strict_priority,
    "smith": smith_ratio,
}
STATIC = "static"
DENSITY = "density"
# Everything a plan may be made by instead of all layers, and what it does, for people.
POLICIES: dict[str, str] = {
    STATIC: "the same sessions every week, jobs in fixed turns, nothing planned anew",
    "fifo": "the front of the queue first",
    "edf": "the next deadline first",
    "priority": "the largest weight first",
    "smith": "the largest weight per hour of work left first",
    DENSITY: "what makes most of an hour now first",
}


def in_order(case: Case, order: Order) -> Policy:
    """Return the policy that starts jobs in ``order`` wherever they fit."""
    factors = {}
    for number, group in enumerate(case.classes):
        for index, offer in enumerate(group.offers):
            if offer is not None:
                job = case.jobs[index].view
                factors[number, index] = order(job) / offer.density(max(1, job.remaining_steps))
    return Policy(factors=factors)


def plan_by(snapshot: Snapshot, policy: str) -> Plan:
    """Return the plan that ``policy``, one of POLICIES, makes of ``snapshot``; raises KeyError for any other name.

    Deadlines only cost value here; a rule that the plan breaks is a warning.
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
        plan = dispatch(snapshot, PLAIN if policy == DENSITY else in_order(case, ORDERS[policy]), case)
    return replace(plan, made_by=policy, warnings=tuple(verify(snapshot, plan)))
