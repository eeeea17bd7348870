"""Plan state: the state of jobs and pools after all sessions of a schedule.

A walk that extends the schedule starts from this state. The search also computes from it how jobs and pools would be
without some of the sessions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from scheduler.planner.model.policy import Schedule

if TYPE_CHECKING:
    from scheduler.planner.model.booking import Booking
    from scheduler.planner.model.capacity_state import CapacityState, PoolUse
    from scheduler.planner.model.case import Case
    from scheduler.planner.model.turns import Turns


class PlanState:
    """The ordered ``bookings``; and by job: ``remaining`` steps, pool and end (``free_from``) of its last session."""

    __slots__ = (
        "_by_job", "_states", "_walked", "bookings", "case_jobs", "free_from", "last_pool", "remaining", "turns",
    )  # fmt: skip

    def __init__(
        self,
        case: Case,
        bookings: Sequence[Booking],
        jobs: tuple[list[int], list[int], list[int]],
        turns: Turns,
        states: Sequence[CapacityState],
        walked: tuple[Sequence[Booking], Sequence[CapacityState]] | None = None,
    ) -> None:
        """Store ``jobs`` (remaining steps, last pools, ends of last sessions) and the pools' states without copying.

        ``walked`` has the sessions of a walk that started from ``states``, and the pools' states at its end.
        """
        self.case_jobs = case.jobs  # the list that the indices refer to
        self.bookings = bookings
        self.remaining, self.last_pool, self.free_from = jobs
        self.turns = turns
        self._states, self._walked = states, walked
        self._by_job: dict[int, list[Booking]] | None = None

    @property
    def states(self) -> Sequence[CapacityState]:
        """The pools' states with all sessions booked, computed on demand."""
        if self._walked is not None:
            bookings, reached = self._walked
            started: dict[int, list[PoolUse]] = {}
            for booking in bookings:
                started.setdefault(booking.pool, []).append(booking.use)
            states = list(self._states)
            for pool, uses in started.items():
                states[pool] = states[pool].with_all_booked(reached[pool], uses)
            self._states, self._walked = states, None
        return self._states

    @property
    def by_job(self) -> Mapping[int, list[Booking]]:
        """The bookings by job, in order."""
        if self._by_job is None:
            self._by_job = {}
            for booking in self.bookings:
                for job, _, _ in booking.lanes:
                    self._by_job.setdefault(job, []).append(booking)
        return self._by_job

    def without_booked(self, case: Case, removed: Collection[Booking]) -> PlanState:
        """Return the state after all sessions except the ``removed`` ones."""
        remaining, last_pool, free_from = self.remaining.copy(), self.last_pool.copy(), self.free_from.copy()
        turns = self.turns.copy() if self.turns else self.turns
        by_pool: dict[int, list[PoolUse]] = {}
        for booking in removed:
            by_pool.setdefault(booking.pool, []).append(booking.use)
            for job, devices, steps in booking.lanes:
                remaining[job] += steps
                if turns:
                    turns.add(job, -devices * (booking.end - booking.start))
                last_pool[job], free_from[job] = case.columns.last_pool[job], 0
        for job in {job for booking in removed for job, _, _ in booking.lanes}:
            for booking in self.by_job[job]:
                if booking not in removed:
                    last_pool[job], free_from[job] = booking.pool, max(free_from[job], booking.end)
        states = list(self.states)
        for pool, uses in by_pool.items():
            states[pool] = states[pool].without_booked(uses)
        kept = [booking for booking in self.bookings if booking not in removed]
        return PlanState(case, kept, (remaining, last_pool, free_from), turns, states)


def initial_state(case: Case) -> PlanState:
    """Return the state before any planned session."""
    if case.beginning is None:
        columns = case.columns
        jobs = columns.remaining, columns.last_pool, [0] * len(case.jobs)
        case.beginning = PlanState(case, (), jobs, case.turns, [capacity.state for capacity in case.capacities])
    return case.beginning


def plan_state(case: Case, schedule: Schedule) -> PlanState:
    """Return the state of jobs and pools after ``schedule``."""
    if schedule.state_after is not None and schedule.state_after.case_jobs is case.jobs:
        return schedule.state_after
    first = initial_state(case)
    remaining, last_pool, free_from = first.remaining.copy(), first.last_pool.copy(), first.free_from.copy()
    turns = first.turns.copy() if first.turns else first.turns
    by_pool: dict[int, list[PoolUse]] = {}
    bookings = [case.bookings.read(placement) for placement in schedule.placements]
    for booking in bookings:
        by_pool.setdefault(booking.pool, []).append(booking.use)
        for job, devices, steps in booking.lanes:
            remaining[job] -= steps
            last_pool[job], free_from[job] = booking.pool, max(free_from[job], booking.end)
            if turns:
                turns.add(job, devices * (booking.end - booking.start))
    states = [state.with_booked(by_pool[pool]) if pool in by_pool else state for pool, state in enumerate(first.states)]
    return PlanState(case, bookings, (remaining, last_pool, free_from), turns, states)


def as_schedule(state: PlanState, gate_passes: dict[int, int]) -> Schedule:
    """Return the schedule whose sessions lead to ``state``."""
    return Schedule(tuple([booking.placement for booking in state.bookings]), gate_passes, state)
