"""Orders: simpler policies that a plan may be compared with, each a rank that replaces the density of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.planner.dispatch import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.core.snapshot import JobView
    from scheduler.planner.case import Case

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


ORDERS: dict[str, Order] = {
    "fifo": first_in_first_out,
    "edf": earliest_deadline_first,
    "priority": strict_priority,
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
