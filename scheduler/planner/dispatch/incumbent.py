"""Incumbent: the sessions of the previous plan that have not begun, as pins for the dispatcher."""

from __future__ import annotations

from scheduler.core.plan import Plan
from scheduler.planner.model.case import Case
from scheduler.planner.model.policy import PinnedSession


def pinned_sessions(case: Case, incumbent: Plan) -> dict[int, tuple[PinnedSession, ...]]:
    """Return, by pool index, the sessions of ``incumbent`` that have not begun, in order.

    Past sessions are left out, and jobs that are closed or already run in the session.
    """
    jobs = {job.view.name: job for job in case.jobs}
    pools = {capacity.pool.name: number for number, capacity in enumerate(case.capacities)}
    pins_of: dict[int, list[PinnedSession]] = {}
    for placement in incumbent.placements:
        pool = pools.get(placement.pool)
        if pool is None or placement.end <= case.now:
            continue
        members = [
            jobs[planned_lane.job].index
            for planned_lane in placement.lanes
            if planned_lane.job in jobs
            and jobs[planned_lane.job].startable
            and case.classes[case.class_of[pool]].offers[jobs[planned_lane.job].index] is not None
            and not _already_runs(case, jobs[planned_lane.job].view.name, placement.start)
        ]
        if members:
            start = max(placement.start, case.now)
            pins_of.setdefault(pool, []).append(PinnedSession(start, tuple(members), placement.end - start))
    return {pool: tuple(pins) for pool, pins in pins_of.items()}


def _already_runs(case: Case, job: str, start: int) -> bool:
    """Return whether the session planned for ``start`` is the live run of the job."""
    live = (run for capacity in case.capacities for run in capacity.view.live if job in run.jobs)
    return any(start < run.deadline for run in live)
