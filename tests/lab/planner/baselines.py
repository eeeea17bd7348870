"""Baselines: the orders other schedulers use, and the seeds' own static week. Nothing here is part of the product."""

from __future__ import annotations

from jobs.nouns.window import DAY, HOUR, WEEK
from scheduler.core.plan import Placement, PlannedLane
from scheduler.core.snapshot import Snapshot
from scheduler.planner.dispatch.dispatcher import make_schedule
from scheduler.planner.dispatch.orders import in_order
from scheduler.planner.model.case import Case, make_case
from scheduler.planner.model.policy import PLAIN
from tests.lab.planner.backfill import backfill

OTHERS = ("fifo", "edf", "priority", "srtf", "smith", "density", "backfill")


def ordered(snapshot: Snapshot, name: str, case: Case | None = None) -> tuple[Placement, ...]:
    """Return the sessions of ``name``, one of OTHERS: first fit in an order, or a batch system's backfill."""
    if name == "backfill":
        return backfill(snapshot).placements
    case = case or make_case(snapshot, firm_deadlines=False)
    return make_schedule(case, PLAIN if name == "density" else in_order(name)).placements


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
    for start, longest, pool, name in sorted(slots):
        view = jobs[name]
        if view.gate is not None and (passed is None or start < passed):
            continue
        index = next(job.index for job in case.jobs if job.view.name == name)
        group = next(g for g in case.classes if g.pool.name == pools[pool].name)
        offer = group.offers[index]
        if offer is None or left[name] <= 0:
            continue
        length = min(longest, offer.session_for(left[name], 1, 1.0))
        steps = offer.steps_in(length, 1, 1.0, left[name])
        left[name] -= steps
        found.append(Placement(pool, start, start + length, (PlannedLane(name, 1, steps),)))
        if name == "main" and passed is None and view.target_step - left[name] >= 0.4 * view.target_step:
            passed = start + length
    return tuple(found)
