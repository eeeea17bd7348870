"""Work conservation: no pool is idle while a waiting job could use its hours and they would expire unused.

Prices, targets and the previous plan may leave a gap, for example after a session that ended early. A waiting job is
planned again so that it starts in the gap now, beside the sessions of other jobs, if the plan's score does not fall.
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduler.core.quota import CalendarQuota, MoneyQuota
from scheduler.planner.dispatch.dispatcher import fill_gaps
from scheduler.planner.model.case import Case
from scheduler.planner.model.plan_state import plan_state
from scheduler.planner.model.policy import PLAIN, Policy, Schedule
from scheduler.planner.model.pool_capacity import PoolCapacity
from scheduler.planner.search.rebuild import without_jobs
from scheduler.planner.search.score import score


def conserve(case: Case, schedule: Schedule, policy: Policy = PLAIN) -> Schedule:
    """Return ``schedule`` with sessions that start now on pools that would be idle while a job waits."""
    for pool, capacity in enumerate(case.capacities):
        if not expires_unused(case, capacity):
            continue
        for _ in range(capacity.pool.sessions_max):
            fuller = next(_with_session_now(case, schedule, policy, pool), None)
            if fuller is None:
                break
            schedule = fuller
    return schedule


def _with_session_now(case: Case, schedule: Schedule, policy: Policy, pool: int) -> Iterator[Schedule]:
    """Yield schedules with one more session on ``pool`` now that are worth no less, the densest job first."""
    state, now = plan_state(case, schedule), case.now
    offers, places_of = case.classes[case.class_of[pool]].offers, case.capacities[pool].places_of
    if state.states[pool].room(now, places_of(0)).seconds <= 0:
        return
    ready = [
        (-offer.density(remaining), job, offer)
        for job, start in case.columns.startable
        for offer, remaining in [(offers[job], case.columns.remaining[job])]
        if offer is not None and remaining > 0 and start <= now and case.jobs[job].gate_parent is None
    ]
    sessions, worth = _sessions_now(case, schedule, pool), score(case, schedule)[:2]
    for _, job, offer in sorted(ready, key=lambda one: one[:2]):
        if any(booking.start <= now for booking in state.by_job.get(job, ())):
            continue
        if state.states[pool].room(now, places_of(offer.fewest)).seconds >= offer.shortest(case.columns.remaining[job]):
            fuller = fill_gaps(case, without_jobs(case, schedule, {job: now}), policy)
            if _sessions_now(case, fuller, pool) > sessions and score(case, fuller)[:2] >= worth:
                yield fuller


def _sessions_now(case: Case, schedule: Schedule, pool: int) -> int:
    return sum(one.pool == pool and one.start <= case.now for one in plan_state(case, schedule).bookings)


def expires_unused(case: Case, capacity: PoolCapacity) -> bool:
    """Return whether unused hours of the pool expire within the horizon and cost no money."""
    for quota in capacity.pool.quotas:
        if isinstance(quota, MoneyQuota):
            if capacity.pool.price_microdollars_per_hour > 0:
                return False
        elif isinstance(quota, CalendarQuota):
            if next(iter(quota.calendar.windows(case.now, case.now + 1))).end > case.until:
                return False
        elif quota.span_seconds > case.snapshot.horizon_seconds:
            return False
    return True
