"""Tie break: jobs that differ only in queue position get their sessions in queue order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scheduler.core.plan import Placement
from scheduler.planner.model.case import Case, PlannerJob
from scheduler.planner.model.pool_capacity import NEVER


def in_queue_order(case: Case, placements: Sequence[Placement]) -> tuple[Placement, ...]:
    """Return the same sessions, with equal jobs exchanged so that the first in the queue starts first.

    Optima have many such ties and a solver breaks them arbitrarily, but people expect the first of a hundred equal jobs
    to start first. The plan's value and validity do not change.
    """
    groups: dict[object, list[int]] = {}
    for job in case.jobs:
        if job.startable and job.view.running is None and job.index not in case.children:
            groups.setdefault(_likeness(case, job), []).append(job.index)
    first: dict[str, tuple[int, str]] = {}
    for placement in sorted(placements, key=lambda placement: (placement.start, placement.pool)):
        for planned_lane in placement.lanes:
            first.setdefault(planned_lane.job, (placement.start, placement.pool))
    names: dict[str, str] = {}
    for group in groups.values():
        queued = [case.jobs[index].view.name for index in group]
        by_start = sorted(queued, key=lambda name: first.get(name, (NEVER, "")))
        names.update(zip(by_start, queued, strict=True))
    renamed = (
        replace(
            placement,
            lanes=tuple(
                replace(planned_lane, job=names.get(planned_lane.job, planned_lane.job))
                for planned_lane in placement.lanes
            ),
        )
        for placement in placements
    )
    return tuple(sorted(renamed, key=lambda placement: (placement.start, placement.pool, placement.lanes[0].job)))


def _likeness(case: Case, job: PlannerJob) -> object:
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
