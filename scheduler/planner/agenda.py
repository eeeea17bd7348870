"""Agenda: what an earlier plan still wants, as appointments for the dispatcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.planner.policy import Appointment

if TYPE_CHECKING:
    from scheduler.core.plan import Plan
    from scheduler.planner.case import Case


def agenda(case: Case, incumbent: Plan) -> dict[int, tuple[Appointment, ...]]:
    """Return, by pool index, the sessions of ``incumbent`` that have not begun, in order.

    Sessions that are over, or whose jobs are closed or already sit in the live run they were meant for, are left out.
    """
    jobs = {job.view.name: job for job in case.jobs}
    pools = {book.pool.name: number for number, book in enumerate(case.books)}
    found: dict[int, list[Appointment]] = {}
    for placement in incumbent.placements:
        pool = pools.get(placement.pool)
        if pool is None or placement.end <= case.now:
            continue
        seated = [
            jobs[seat.job].index
            for seat in placement.seats
            if seat.job in jobs
            and jobs[seat.job].startable
            and case.classes[case.class_of[pool]].offers[jobs[seat.job].index] is not None
            and not _already_runs(case, jobs[seat.job].view.name, placement.start)
        ]
        if seated:
            start = max(placement.start, case.now)
            found.setdefault(pool, []).append(Appointment(start, tuple(seated), placement.end - start))
    return {pool: tuple(appointments) for pool, appointments in found.items()}


def _already_runs(case: Case, job: str, start: int) -> bool:
    """Tell whether the session planned for ``start`` is the live run of the job."""
    live = (run for book in case.books for run in book.view.live if job in run.jobs)
    return any(start < run.deadline for run in live)
