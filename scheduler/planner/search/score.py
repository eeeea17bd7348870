"""Score of a plan, for comparison: deadlines met, then value, then how early the value comes."""

from typing import NamedTuple

from scheduler.planner.model.case import Case
from scheduler.planner.model.plan_state import plan_state
from scheduler.planner.model.policy import Schedule

# Rounding of values, so that the order of a floating-point sum does not matter.
_DIGITS = 9


class PlanScore(NamedTuple):
    """Larger is better, field by field; ``on_time`` counts jobs with a firm deadline that finish before it.

    ``soon`` is the negated sum of each session's value times its time. It separates plans of equal value, which are
    common because an hour has the same value all day.
    """

    on_time: int
    value: float
    soon: float

    @property
    def gain(self) -> tuple[float, float]:
        """The fields to compare among plans that meet enough deadlines."""
        return self.value, self.soon


def score(case: Case, schedule: Schedule) -> PlanScore:
    """Return the score of ``schedule``."""
    on_time = len(jobs_on_time(case, schedule)) if case.firm_deadlines else 0
    bookings = plan_state(case, schedule).bookings
    return PlanScore(
        on_time, round(case.within.total(bookings), _DIGITS), round(-case.within.moment(bookings), _DIGITS)
    )


def jobs_on_time(case: Case, schedule: Schedule) -> frozenset[int]:
    """Return the jobs that finish all their work before their deadline."""
    state = plan_state(case, schedule)
    remaining, ends = state.remaining, state.free_from
    return frozenset(job for job, deadline in case.columns.due if remaining[job] <= 0 and ends[job] <= deadline)


def finishes_all(case: Case, schedule: Schedule) -> bool:
    """Return whether every job that may start finishes within the horizon."""
    remaining = plan_state(case, schedule).remaining
    return all(remaining[job.index] <= 0 for job in case.jobs if job.startable and job.free_at is not None)


def weighted_flow_time(case: Case, schedule: Schedule) -> float:
    """Return the sum of priority times seconds until the job is done, at most until the end of the horizon."""
    state = plan_state(case, schedule)
    ends = zip(case.jobs, state.remaining, state.free_from, strict=True)
    return sum(
        job.view.weight * ((case.until if steps > 0 else max(end, job.free_at or 0)) - case.now)
        for job, steps, end in ends
        if job.startable and job.free_at is not None
    )
