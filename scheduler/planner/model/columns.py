"""Columns: the figures of all jobs that a walk reads, by job index, computed once per case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.planner.model.case import Case, JobOffer

    # A job in the queue of a pool class: tier, rank, Smith ratio, job, shortest useful session, density, offer.
    # Urgent jobs come first, by their latest start; then the others by density and Smith ratio (both negated). Ties go
    # by job index, which is the queue position.
    Entry = tuple[int, float, float, int, int, float, JobOffer]
    # Pool class, the job's entry by density, the seconds of all sessions that the job needs there.
    Shape = tuple[int, Entry, int]

URGENT, ORDINARY = 0, 1
# The cache of shapes is cleared when it holds this many.
SHAPES_MAX = 50_000


class Columns:
    """``whole`` is the target step by job, ``last_pool`` the pool of the last session (-1: none of this case).

    ``startable`` are (job, earliest start), ``due`` (job, deadline), ``live`` the jobs whose live run will checkpoint
    steps. ``shapes_by_steps`` caches the shapes of each job by its steps left.
    """

    __slots__ = (
        "_count", "_importance", "_usable", "deadline", "due", "last_pool", "live", "remaining", "shapes_by_steps",
        "startable", "whole",
    )  # fmt: skip

    def __init__(self, case: Case) -> None:
        jobs = case.jobs
        pools = {capacity.pool.name: number for number, capacity in enumerate(case.capacities)}
        self.remaining = [job.view.remaining_steps - job.expected_steps for job in jobs]
        self.whole = [job.view.done_step + job.view.remaining_steps for job in jobs]
        self.last_pool = [pools.get(job.view.last_pool or "", -1) for job in jobs]
        self.deadline = [job.deadline for job in jobs]
        self.due = [(job.index, job.deadline) for job in jobs if job.deadline is not None]
        self.startable = [
            (job.index, max(job.release, job.free_at)) for job in jobs if job.startable and job.free_at is not None
        ]
        self.live = [job.index for job in jobs if job.expected_steps and job.free_at is not None]
        self._importance = [job.view.importance for job in jobs]
        self._usable = [
            [(number, offer) for number, group in enumerate(case.classes) if (offer := group.offers[job.index])]
            for job in jobs
        ]
        self.shapes_by_steps: list[dict[int, Sequence[Shape]]] = [{} for _ in jobs]
        self._count = 0

    def shapes(self, job: int, remaining: int) -> Sequence[Shape]:
        """Return the shapes of ``job`` with ``remaining`` steps left, one per pool class that it may use."""
        job_shapes = self.shapes_by_steps[job].get(remaining)
        if job_shapes is None:
            if self._count >= SHAPES_MAX:
                self._count = 0
                for shapes in self.shapes_by_steps:
                    shapes.clear()
            ratio = -self._importance[job] / remaining
            job_shapes = self.shapes_by_steps[job][remaining] = [
                (number, _entry(job, offer, remaining, ratio), offer.time_for(remaining))
                for number, offer in self._usable[job]
            ]
            self._count += len(job_shapes)
        return job_shapes


def _entry(job: int, offer: JobOffer, remaining: int, ratio: float) -> Entry:
    density = offer.density(remaining)
    return ORDINARY, -density, ratio * offer.speeds[-1], job, offer.shortest(remaining), density, offer
