"""The list dispatcher. It needs only the standard library, and every other layer ends with it.

It walks through time from now to the horizon. When a pool has room it starts the waiting job of the highest density
there, priority * speed * (1 - overhead). Ties go to the job with the best Smith ratio, then to the queue position.
"""

from collections.abc import Sequence
from dataclasses import replace

from scheduler.core.plan import Placement, Plan
from scheduler.core.snapshot import Snapshot
from scheduler.planner.dispatch.waiting import deferrals
from scheduler.planner.dispatch.walk import Walk
from scheduler.planner.model.case import Case, PlannerJob, make_case
from scheduler.planner.model.policy import PLAIN, PinnedSession, PlanPolicy, Schedule
from scheduler.planner.model.pool_capacity import NEVER
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


# Tie break: jobs that differ only in queue position get their sessions in queue order.
def in_queue_order(case: Case, placements: Sequence[Placement]) -> tuple[Placement, ...]:
    """Return the same sessions, with equal jobs exchanged so that the first in the queue starts first.

    Optima have many such ties and a solver breaks them arbitrarily, but people expect the first of a hundred equal jobs
    to start first. The plan's value and validity do not change.
    """
    groups: dict[object, list[int]] = {}
    for job in case.jobs:
        if job.startable and job.view.running is None and job.index not in case.children:
            groups.setdefault(_equality_key(case, job), []).append(job.index)
    first: dict[str, tuple[int, str]] = {}
    for placement in sorted(placements, key=lambda placement: (placement.start, placement.pool)):
        for lane in placement.lanes:
            first.setdefault(lane.job, (placement.start, placement.pool))
    names: dict[str, str] = {}
    for group in groups.values():
        queued = [case.jobs[index].view.name for index in group]
        by_start = sorted(queued, key=lambda name: first.get(name, (NEVER, "")))
        names.update(zip(by_start, queued, strict=True))
    renamed = (
        replace(placement, lanes=tuple(replace(lane, job=names.get(lane.job, lane.job)) for lane in placement.lanes))
        for placement in placements
    )
    return tuple(sorted(renamed, key=lambda placement: (placement.start, placement.pool, placement.lanes[0].job)))


def _equality_key(case: Case, job: PlannerJob) -> object:
    """Return the key that is equal for equal jobs: every input of the planner except name and queue position."""
    view = job.view
    return (
        view.remaining_steps,
        view.done_step,
        view.needs,
        view.device_speedup,
        view.allowed_pools,
        view.share,
        view.last_pool,
        job.release,
        job.deadline,
        view.gate,
        tuple(group.offers[job.index] for group in case.classes),
    )


# Incumbent: the sessions of the previous plan that have not ended, as pins for the dispatcher.
def pinned_sessions(case: Case, incumbent: Plan) -> dict[int, tuple[PinnedSession, ...]]:
    """Return, by pool index, the sessions of ``incumbent`` that have not ended, in order; none starts before now.

    A session has only those of its jobs that may start, fit the pool and do not already run in that session.
    """
    jobs = {job.view.name: job for job in case.jobs}
    pools = {capacity.pool.name: number for number, capacity in enumerate(case.capacities)}
    pins_by_pool: dict[int, list[PinnedSession]] = {}
    for placement in incumbent.placements:
        pool = pools.get(placement.pool)
        if pool is None or placement.end <= case.now:
            continue
        members = [
            jobs[lane.job].index
            for lane in placement.lanes
            if lane.job in jobs
            and jobs[lane.job].startable
            and case.classes[case.class_of[pool]].offers[jobs[lane.job].index] is not None
            and not _already_runs(case, jobs[lane.job].view.name, placement.start)
        ]
        if members:
            start = max(placement.start, case.now)
            pins_by_pool.setdefault(pool, []).append(PinnedSession(start, tuple(members), placement.end - start))
    return {pool: tuple(pins) for pool, pins in pins_by_pool.items()}


def _already_runs(case: Case, job: str, start: int) -> bool:
    """Return whether the session planned for ``start`` is the live run of the job."""
    live = (run for capacity in case.capacities for run in capacity.view.live if job in run.jobs)
    return any(start < run.deadline for run in live)
