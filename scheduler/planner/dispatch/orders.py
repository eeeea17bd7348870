"""Orders: the job orders of simpler schedulers (FIFO, EDF, SRTF, ...). The smallest rank goes first.

A rank depends on the job and its remaining steps, not on pools. Ties go by queue position. The job runs on the pool
where its density is highest.
"""

from collections.abc import Callable

from scheduler.core.snapshot import JobView
from scheduler.planner.model.policy import PlanPolicy
from scheduler.planner.model.value import reference_rate

Order = Callable[[JobView, int], float]

_NO_DEADLINE = float("inf")


def first_in_first_out(job: JobView, remaining: int) -> float:
    """Return the queue position."""
    del remaining
    return float(job.position)


def earliest_deadline_first(job: JobView, remaining: int) -> float:
    """Return the deadline; jobs without one come last."""
    del remaining
    return _NO_DEADLINE if job.deadline is None else float(job.deadline)


def strict_priority(job: JobView, remaining: int) -> float:
    """Return the priority, negated."""
    del remaining
    return -job.weight


def shortest_remaining_first(job: JobView, remaining: int) -> float:
    """Return the remaining seconds on the reference device (SRTF)."""
    return remaining / reference_rate(job)


def smith_ratio(job: JobView, remaining: int) -> float:
    """Return the priority per remaining second, negated (weighted SRTF)."""
    return -job.weight * reference_rate(job) / max(1, remaining)


ORDERS: dict[str, Order] = {
    "fifo": first_in_first_out,
    "edf": earliest_deadline_first,
    "priority": strict_priority,
    "srtf": shortest_remaining_first,
    "smith": smith_ratio,
}
# The orders that do not depend on remaining steps.
LASTING = frozenset({"fifo", "edf", "priority"})


def in_order(name: str) -> PlanPolicy:
    """Return the policy that starts jobs in the order ``name``, one of ORDERS."""
    return PlanPolicy(order=ORDERS[name])
