"""Explain: the one reason why a job waits, and for one that is outbid the weight that would start it now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from scheduler.core.reasons import Outbid
from scheduler.planner.layers import ALL_LAYERS, Options, Planner
from scheduler.planner.whatif import SetWeight, UnknownName, apply

if TYPE_CHECKING:
    from scheduler.core.plan import Plan
    from scheduler.core.reasons import Reason
    from scheduler.core.snapshot import Snapshot

DOUBLINGS_MAX = 20
HALVINGS = 7


def explain(snapshot: Snapshot, job: str, options: Options = ALL_LAYERS) -> Reason | None:
    """Return why ``job`` does not start now, or None when it starts or runs. Raises UnknownName.

    For a job that is outbid, ``weight_to_start`` is a weight with which planning again does start it now, found by
    trying; no weight a percent lower was seen to.
    """
    if all(view.name != job for view in snapshot.jobs):
        raise UnknownName("job", job, [view.name for view in snapshot.jobs])
    plan = Planner(options).plan(snapshot)
    reason = next((found.reason for found in plan.deferrals if found.job == job), None)
    if isinstance(reason, Outbid):
        return replace(reason, weight_to_start=weight_to_start(snapshot, job, options))
    return reason


def weight_to_start(snapshot: Snapshot, job: str, options: Options = ALL_LAYERS) -> float | None:
    """Return the lowest weight found with which a new plan starts ``job`` now; None if no weight does."""
    low = next(view.weight for view in snapshot.jobs if view.name == job)
    high = max(low, 1e-3)
    for _ in range(DOUBLINGS_MAX):
        high *= 2
        if _starts(snapshot, job, high, options):
            break
    else:
        return None
    for _ in range(HALVINGS):
        middle = (max(low, high / 2) + high) / 2
        if _starts(snapshot, job, middle, options):
            high = middle
        else:
            low = middle
        if high - low < 0.01 * high:
            break
    return high


def _starts(snapshot: Snapshot, job: str, weight: float, options: Options) -> bool:
    plan: Plan = Planner(options).plan(apply(snapshot, SetWeight(job, weight)))
    return any(seat.job == job for placement in plan.due_now for seat in placement.seats)
