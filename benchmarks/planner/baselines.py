"""Baselines: the orders other schedulers use, and the seeds' own static week. Nothing here is part of the product."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.core.plan import Placement, Seat
from scheduler.core.snapshot import JobView, Snapshot
from scheduler.core.window import DAY, HOUR, WEEK
from scheduler.planner.case import Case, make_case
from scheduler.planner.dispatch import Policy, place

Order = Callable[[JobView], float]

LAST = 1e12


def first_in_first_out(job: JobView) -> float:
    """Larger goes first: the front of the queue."""
    return LAST - job.position


def earliest_deadline_first(job: JobView) -> float:
    """Larger goes first: the next deadline, then the front of the queue."""
    return LAST + 1e10 - job.deadline if job.deadline is not None else LAST - job.position


def strict_priority(job: JobView) -> float:
    """Larger goes first: the weight, then the front of the queue."""
    return job.weight * 1e9 - job.position


ORDERS: dict[str, Order] = {
    "fifo": first_in_first_out,
    "edf": earliest_deadline_first,
    "priority": strict_priority,
}


def ordered(snapshot: Snapshot, order: Order, case: Case | None = None) -> tuple[Placement, ...]:
    """Return the sessions of first fit in ``order``: the dispatcher with every job's density replaced by its rank."""
    case = case or make_case(snapshot, firm_deadlines=False)
    factors = {}
    for number, group in enumerate(case.classes):
        for index, offer in enumerate(group.offers):
            if offer is None:
                continue
            view = case.jobs[index].view
            length = offer.session_for(view.remaining_steps, len(offer.speeds), 1.0)
            density = offer.worth * offer.speeds[-1] * offer.terms.useful(length) / length
            factors[number, index] = order(view) / density
    return place(case, Policy(factors=factors)).placements


def static_week(snapshot: Snapshot) -> tuple[Placement, ...]:
    """Return the seeds' proposal: 3 x 10 h Kaggle for main, 4 h SageMaker a day for the managers in rotation.

    Nothing is planned anew: a manager whose gate is closed leaves its session unused, and so does finished work.
    """
    case = make_case(snapshot, firm_deadlines=False)
    jobs = {view.name: view for view in snapshot.jobs}
    left = {view.name: view.remaining_steps for view in snapshot.jobs}
    pools = {view.pool.name: view.pool for view in snapshot.pools}
    managers = [view.name for view in snapshot.jobs if view.gate is not None or view.name != "main"]
    found: list[Placement] = []
    slots = []
    for week in range(snapshot.horizon_seconds // WEEK):
        start = snapshot.now + week * WEEK
        slots += [(start + 2 * number * DAY, 10 * HOUR, "kaggle", "main") for number in range(3)]
        for day in range(7):
            slots.append((start + day * DAY, 4 * HOUR, "sagemaker", managers[(week * 7 + day) % len(managers)]))
    passed: int | None = None
    for start, length, pool, name in sorted(slots):
        view = jobs[name]
        if view.gate is not None and (passed is None or start < passed):
            continue
        index = next(job.index for job in case.jobs if job.view.name == name)
        group = next(g for g in case.classes if g.pool.name == pools[pool].name)
        offer = group.offers[index]
        if offer is None or left[name] <= 0:
            continue
        length = min(length, offer.session_for(left[name], 1, 1.0))
        steps = offer.steps_in(length, 1, 1.0, left[name])
        left[name] -= steps
        found.append(Placement(pool, start, start + length, (Seat(name, 1, steps),)))
        if name == "main" and passed is None and view.target_step - left[name] >= 0.4 * view.target_step:
            passed = start + length
    return tuple(found)
