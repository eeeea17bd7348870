"""Score: what candidate plans are compared by. Deadlines met come first, value second, how early it comes third."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from scheduler.planner.model.standing import standing_of

if TYPE_CHECKING:
    from scheduler.planner.model.case import Case
    from scheduler.planner.model.policy import Schedule


# Of weighted hours: the same sessions, added in another order, are worth the same.
_DIGITS = 9


class Score(NamedTuple):
    """Larger is better, field by field; ``on_time`` counts jobs with a firm deadline that finish before it.

    ``soon`` is the sum of each session's value times when it is worked, negated: plans of the same value, of which
    there are many since an hour is worth the same all day, are told apart by it.
    """

    on_time: int
    value: float
    soon: float

    @property
    def gain(self) -> tuple[float, float]:
        """What is compared among plans that meet the deadlines they should."""
        return self.value, self.soon


def score(case: Case, schedule: Schedule) -> Score:
    """Return the score of ``schedule``."""
    on_time = len(met(case, schedule)) if case.firm_deadlines else 0
    counted = case.within if case.afterwards is None else case.afterwards.worth
    soon = -counted.moment(standing_of(case, schedule).bookings)
    return Score(on_time, round(worth(case, schedule), _DIGITS), round(soon, _DIGITS))


def worth(case: Case, schedule: Schedule) -> float:
    """Return the value of ``schedule``, less what its work could bring after the horizon if that counts."""
    bookings = standing_of(case, schedule).bookings
    if case.afterwards is None:
        return case.within.total(bookings)
    step_worth = case.afterwards.step_worth
    elsewhere = sum([step_worth[job] * steps for booking in bookings for job, _, steps in booking.lanes])
    return case.afterwards.worth.total(bookings) - elsewhere


def within(case: Case, schedule: Schedule) -> float:
    """Return what ``schedule`` is worth within the horizon."""
    return case.within.total(standing_of(case, schedule).bookings)


def met(case: Case, schedule: Schedule) -> frozenset[int]:
    """Return the jobs with a deadline that finish all their work before it."""
    standing = standing_of(case, schedule)
    remaining, ends = standing.remaining, standing.free_from
    return frozenset(job for job, deadline in case.columns.due if remaining[job] <= 0 and ends[job] <= deadline)
