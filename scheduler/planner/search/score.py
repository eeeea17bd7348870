"""Score: what candidate plans are compared by. Deadlines met come first, value second."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from scheduler.planner.model.case import Case
    from scheduler.planner.model.policy import Schedule


class Score(NamedTuple):
    """Larger is better, field by field; ``on_time`` counts jobs with a firm deadline that finish before it."""

    on_time: int
    value: float


def score(case: Case, schedule: Schedule) -> Score:
    """Return the score of ``schedule``."""
    return Score(len(met(case, schedule)) if case.firm_deadlines else 0, worth(case, schedule))


def worth(case: Case, schedule: Schedule) -> float:
    """Return the value of ``schedule``, less what its work could bring after the horizon if that counts."""
    if case.afterwards is None:
        return case.within.total(schedule.placements)
    step_worth = {job.view.name: found for job, found in zip(case.jobs, case.afterwards.step_worth, strict=True)}
    elsewhere = sum(
        step_worth[planned_lane.job] * planned_lane.steps
        for placed in schedule.placements
        for planned_lane in placed.lanes
    )
    return case.afterwards.worth.total(schedule.placements) - elsewhere


def within(case: Case, schedule: Schedule) -> float:
    """Return what ``schedule`` is worth within the horizon."""
    return case.within.total(schedule.placements)


def met(case: Case, schedule: Schedule) -> frozenset[int]:
    """Return the jobs with a deadline that finish all their work before it."""
    due = {job.view.name: job for job in case.jobs if job.deadline is not None}
    left = {name: job.view.remaining_steps - job.expected_steps for name, job in due.items()}
    for placement in schedule.placements:
        for planned_lane in placement.lanes:
            if planned_lane.job in due and placement.end <= (due[planned_lane.job].deadline or 0):
                left[planned_lane.job] -= planned_lane.steps
    return frozenset(due[name].index for name, steps in left.items() if steps <= 0)
