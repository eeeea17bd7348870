"""Orders: the simple rules other schedulers start jobs by, exactly as they are called; the smallest rank goes first.

A rank knows the job and what it has left when it is asked, and neither pools nor worth. Equal ranks go by the place in
the queue, and a job goes where it makes most of an hour.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduler.core.snapshot import JobView
from scheduler.planner.model.policy import Policy
from scheduler.planner.model.value import reference_rate

Order = Callable[[JobView, int], float]

_NO_DEADLINE = float("inf")


def first_in_first_out(job: JobView, remaining: int) -> float:
    """Return the place in the queue."""
    del remaining
    return float(job.position)


def earliest_deadline_first(job: JobView, remaining: int) -> float:
    """Return the deadline; jobs without one come last."""
    del remaining
    return _NO_DEADLINE if job.deadline is None else float(job.deadline)


def strict_priority(job: JobView, remaining: int) -> float:
    """Return the weight, negated."""
    del remaining
    return -job.weight


def shortest_remaining_first(job: JobView, remaining: int) -> float:
    """Return the seconds on the reference device that are left (SRTF)."""
    return remaining / reference_rate(job)


def smith_ratio(job: JobView, remaining: int) -> float:
    """Return the weight per second that is left, negated (weighted SRTF)."""
    return -job.weight * reference_rate(job) / max(1, remaining)


ORDERS: dict[str, Order] = {
    "fifo": first_in_first_out,
    "edf": earliest_deadline_first,
    "priority": strict_priority,
    "srtf": shortest_remaining_first,
    "smith": smith_ratio,
}
# What a job has done changes nothing in these.
LASTING = frozenset({"fifo", "edf", "priority"})


def in_order(name: str) -> Policy:
    """Return the policy that starts jobs in the order ``name``, one of ORDERS, wherever they fit."""
    return Policy(order=ORDERS[name])
