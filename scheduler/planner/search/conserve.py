"""Work conservation: no pool is idle while a waiting job could use its hours and they would expire unused.

Prices, targets and the previous plan may leave a gap, for example after a session that ended early. A waiting job
starts in the gap now, besides all planned sessions and before its own next one, if the plan's score does not fall.
"""

from collections.abc import Sequence
from dataclasses import replace

from jobs.nouns.quota import CalendarQuota, MoneyQuota
from scheduler.core.plan import Placement, PlannedLane
from scheduler.planner.dispatch.dispatcher import fill_gaps
from scheduler.planner.model.case import Case, JobOffer, PlannerJob, PoolClass
from scheduler.planner.model.lanes import CandidateSession, compose, mold
from scheduler.planner.model.policy import PLAIN, PlanPolicy, Schedule
from scheduler.planner.model.pool_capacity import PoolCapacity
from scheduler.planner.search.score import score


def conserve(case: Case, schedule: Schedule, policy: PlanPolicy = PLAIN) -> Schedule:
    """Return ``schedule`` with sessions that start now on pools that would be idle while a job waits."""
    current = schedule
    for pool in range(len(case.capacities)):
        for _ in range(case.capacities[pool].pool.sessions_max):
            changed = _with_session_now(case, current, policy, pool)
            if changed is None:
                break
            current = changed
    return current


def _with_session_now(case: Case, schedule: Schedule, policy: PlanPolicy, pool: int) -> Schedule | None:
    """Return ``schedule`` with one more session on ``pool`` now, or None if none is possible."""
    capacity, now = case.capacities[pool], case.now
    if capacity.room(now).seconds <= 0 or not expires_unused(case, capacity):
        return None
    mine = [placed for placed in schedule.placements if placed.pool == capacity.pool.name]
    booked = _booked(capacity, mine)
    crowded = booked.room(now).seconds <= 0
    if crowded and any(placed.start <= now for placed in mine):
        return None
    next_starts = first_starts(schedule)
    group = case.classes[case.class_of[pool]]
    for _, index, offer in _startable_jobs(case, pool, next_starts):
        job = case.jobs[index]
        remaining = [0] * index + [job.view.remaining_steps - job.expected_steps]
        starts = next_starts.get(job.view.name, case.until)
        beside, session = booked, None
        if not crowded:
            session = _session_beside(group, beside, job, remaining, now, starts)
        others = [placed for placed in mine if [lane.job for lane in placed.lanes] != [job.view.name]]
        if session is None and len(others) < len(mine):  # the job's own sessions may take the hours that it needs now
            beside = _booked(capacity, others)
            session = _session_beside(group, beside, job, remaining, now, starts)
        if session is None:
            continue
        (lane,) = session.lanes
        rest = _without_last_steps(case, schedule, job, lane.steps)
        if beside is not booked:
            beside = _booked(capacity, [placed for placed in rest if placed.pool == capacity.pool.name])
        room = beside.room(now, lane.devices).seconds
        if room < session.length:
            continue
        spare = offer.spare(lane.steps, lane.devices) if lane.steps == remaining[index] else 0
        end = now + session.length + max(0, min(spare, room - session.length, starts - now - session.length))
        added = Placement(capacity.pool.name, now, end, (PlannedLane(job.view.name, lane.devices, lane.steps),))
        fuller = fill_gaps(case, Schedule((*rest, added), schedule.gate_passes), policy)
        if score(case, fuller)[:2] >= score(case, schedule)[:2]:
            return fuller
    return None


def _booked(capacity: PoolCapacity, sessions: Sequence[Placement]) -> PoolCapacity:
    """Return the capacity that ``sessions`` leave."""
    booked = capacity.copy()
    for placed in sessions:
        booked.book(placed.start, placed.end, placed.devices)
    return booked


def _session_beside(
    group: PoolClass, booked: PoolCapacity, job: PlannerJob, remaining: Sequence[int], now: int, starts: int
) -> CandidateSession | None:
    """Return a session of ``job`` from ``now``, besides the booked ones, that ends before ``starts``, or None."""

    def room(devices: int) -> int:
        return min(booked.room(now, devices).seconds, starts - now)

    if group.pool.device_counts:
        return mold(group, job.index, remaining, room, None if job.deadline is None else job.deadline - now)
    return compose(group, room(0), job.index, (), remaining)


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


def first_starts(schedule: Schedule) -> dict[str, int]:
    """Return the first start of each job, by name."""
    starts: dict[str, int] = {}
    for placed in schedule.placements:
        for lane in placed.lanes:
            starts[lane.job] = min(starts.get(lane.job, placed.start), placed.start)
    return starts


def _startable_jobs(case: Case, pool: int, next_starts: dict[str, int]) -> list[tuple[float, int, JobOffer]]:
    """Return (-density, job, offer) of the jobs that could start on ``pool`` now and do not, densest first."""
    offers = case.classes[case.class_of[pool]].offers
    ready = []
    for job in case.jobs:
        offer = offers[job.index]
        if offer is None or not job.startable or job.gate_parent is not None:
            continue
        if job.free_at != case.now or job.release > case.now or job.view.running is not None:
            continue
        remaining = job.view.remaining_steps - job.expected_steps
        if remaining > 0 and next_starts.get(job.view.name, case.until) > case.now:
            ready.append((-offer.density(remaining), job.index, offer))
    return sorted(ready, key=lambda entry: entry[:2])


def _without_last_steps(case: Case, schedule: Schedule, job: PlannerJob, steps: int) -> tuple[Placement, ...]:
    """Return the sessions without the last steps of ``job``, so that ``steps`` can be trained before them."""
    name, pools = job.view.name, {capacity.pool.name: number for number, capacity in enumerate(case.capacities)}
    planned = sum(lane.steps for placed in schedule.placements for lane in placed.lanes if lane.job == name)
    excess = planned + steps - (job.view.remaining_steps - job.expected_steps)
    sessions: list[Placement] = []
    for placed in sorted(schedule.placements, key=lambda session: -session.start):
        mine = next((lane for lane in placed.lanes if lane.job == name), None)
        if mine is None or excess <= 0:
            sessions.append(placed)
            continue
        less = min(mine.steps, excess)
        excess -= less
        shortened = replace(mine, steps=mine.steps - less)
        planned_lanes = tuple(
            shortened if lane is mine else lane for lane in placed.lanes if lane is not mine or shortened.steps > 0
        )
        if len(placed.lanes) == 1 and planned_lanes:
            offer = case.classes[case.class_of[pools[placed.pool]]].offers[job.index]
            needed = placed.end - placed.start
            if offer is not None:
                needed = offer.session_for(shortened.steps, shortened.devices, 1.0)
            sessions.append(replace(placed, lanes=planned_lanes, end=min(placed.end, placed.start + needed)))
        elif planned_lanes:
            sessions.append(replace(placed, lanes=planned_lanes))
    return tuple(sorted(sessions, key=lambda session: (session.start, session.pool, session.lanes[0].job)))
