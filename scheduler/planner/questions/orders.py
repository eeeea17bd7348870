"""Orders: plans by simpler rules, for comparison."""

from dataclasses import dataclass, replace

from jobs.nouns.quota import CalendarQuota, MoneyQuota, Quota
from jobs.nouns.window import DAY, AllTime, Window
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.snapshot import PoolView, Snapshot
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.dispatch.orders import in_order
from scheduler.planner.dispatch.waiting import deferrals
from scheduler.planner.model.case import Case, make_case
from scheduler.planner.model.count import lowest_limit
from scheduler.planner.model.policy import PLAIN
from scheduler.planner.model.pool_capacity import PoolCapacity
from scheduler.planner.model.value import value
from scheduler.planner.verify import verify

STATIC = "static"
DENSITY = "density"
# The rules that can make a plan instead of the planner, with a description for users.
POLICIES: dict[str, str] = {
    STATIC: "the same sessions every week, jobs in fixed turns, without new plans",
    "fifo": "the front of the queue first",
    "edf": "the earliest deadline first",
    "priority": "the highest priority first",
    "srtf": "the least work left first",
    "smith": "the highest priority per hour of work left first",
    DENSITY: "the job that makes the most of the next hour first",
}


def plan_by(snapshot: Snapshot, policy: str) -> Plan:
    """Return the plan of ``snapshot`` by ``policy``, one of POLICIES; raises KeyError for any other name.

    A missed deadline only costs value here. Violations are returned as warnings of the plan.
    """
    case = make_case(snapshot, firm_deadlines=False)
    if policy == STATIC:
        placements = timetable(case)
        plan = Plan(
            made_at=snapshot.now,
            placements=placements,
            deferrals=deferrals(case, placements, {}),
            value=value(snapshot, placements),
        )
    else:
        plan = dispatch(snapshot, PLAIN if policy == DENSITY else in_order(policy), case)
    return replace(plan, made_by=policy, warnings=tuple(verify(snapshot, plan)))


# A static week as planned by hand, for comparison. It does not react to anything.
#
# Every window of a pool's quota is divided into equal sessions at equal intervals. The job of the highest priority
# uses the pool with the most hours alone; the others rotate on the remaining pools. A session of a job that is
# finished, held or behind its gate is lost.
@dataclass(frozen=True, slots=True, order=True)
class TimetableSlot:
    """A session of the timetable; ``turn``, its number on the pool, determines its job."""

    start: int
    pool: int
    seconds: int
    turn: int


def timetable(case: Case) -> tuple[Placement, ...]:
    """Return the sessions of the static week from now to the horizon, as far as quotas and openings allow."""
    capacities = [capacity.copy() for capacity in case.capacities]
    slots = {number: _slots(case, number) for number in range(len(capacities))}
    turns = _turns(case, {number: sum(slot.seconds for slot in pool_slots) for number, pool_slots in slots.items()})
    remaining = [job.view.remaining_steps - job.expected_steps for job in case.jobs]
    opens = [job.release if job.gate_parent is None else case.until for job in case.jobs]
    placements: list[Placement] = []
    for slot in sorted(slot for pool_slots in slots.values() for slot in pool_slots):
        jobs = turns[slot.pool]
        if not jobs:
            continue
        index = jobs[slot.turn % len(jobs)]
        job, offer = case.jobs[index], case.classes[case.class_of[slot.pool]].offers[index]
        start = slot.start
        opened = max(opens[index], job.free_at or case.until)
        if offer is None or not job.startable or remaining[index] <= 0 or start < opened:
            continue
        capacity = capacities[slot.pool]
        devices = next(count for count, speed in enumerate(offer.speeds, 1) if speed >= offer.speeds[-1])
        devices = offer.thrifty or devices
        needed = offer.session_for(remaining[index], devices, 1.0)
        length = min(slot.seconds, capacity.room(start, devices).seconds, needed)
        if length < offer.shortest(remaining[index]):
            continue
        steps = offer.steps_in(length, devices, 1.0, remaining[index])
        capacity.start_session(start, start + length, devices)
        remaining[index] -= steps
        lane = PlannedLane(job.view.name, devices, steps)
        placements.append(Placement(capacity.pool.name, start, start + length, (lane,)))
        for child in case.children.get(index, ()):
            if opens[child] == case.until and job.view.target_step - remaining[index] >= case.jobs[child].gate_step:
                opens[child] = max(case.jobs[child].release, start + length)
    return tuple(placements)


def _turns(case: Case, seconds: dict[int, int]) -> dict[int, list[int]]:
    """Return by pool the jobs that rotate on it, in queue order."""
    able = {
        number: [job.index for job in case.jobs if case.classes[case.class_of[number]].offers[job.index] is not None]
        for number in seconds
    }
    anywhere = {index for jobs in able.values() for index in jobs}
    heaviest = max(
        (job for job in case.jobs if job.index in anywhere), key=lambda job: (job.view.weight, -job.index), default=None
    )
    if heaviest is None:
        return able
    usable = [number for number, jobs in able.items() if heaviest.index in jobs]
    largest = max(usable, key=lambda number: (seconds[number], -number), default=None)
    if largest is None or len(seconds) == 1:
        return able
    return {
        number: [heaviest.index] if number == largest else [job for job in jobs if job != heaviest.index]
        for number, jobs in able.items()
    }


def _slots(case: Case, number: int) -> list[TimetableSlot]:
    capacity = case.capacities[number]
    sessions: list[tuple[int, int]] = []
    for window, seconds in _windows(capacity, case.now, case.until):
        count = -(-seconds // capacity.pool.session_cap_seconds)
        if count == 0:
            continue
        distance = (window.end - window.start) // count
        for part in range(count):
            start = window.start + part * distance
            if case.now <= start < case.until:
                sessions.append((start, min(capacity.pool.session_cap_seconds, seconds // count, distance)))
    return [TimetableSlot(start, number, seconds, turn) for turn, (start, seconds) in enumerate(sorted(sessions))]


def _windows(capacity: PoolCapacity, now: int, until: int) -> list[tuple[Window, int]]:
    """Return the windows of the pool's tightest quota with the seconds that each allows; openings if it has none."""
    pool = capacity.pool
    quotas = [quota for quota in pool.quotas if isinstance(quota, CalendarQuota | MoneyQuota)]
    quotas = [quota for quota in quotas if quota.calendar != AllTime()]  # a quota that never renews has one window
    openings = [(opening, opening.end - opening.start) for opening in pool.open_windows(now, until)]
    if not quotas:
        days = [Window(start, min(start + DAY, until)) for start in range(now, until, DAY)]
        return openings if pool.hours else [(day, min(pool.session_cap_seconds, day.end - day.start)) for day in days]
    quota = min(quotas, key=lambda each: _seconds_a_day(each, capacity.view, now))
    return [
        (window, min(_seconds(quota, capacity.view, window, now), window.end - window.start))
        for window in quota.calendar.windows(now, until)
    ]


def _seconds(quota: CalendarQuota | MoneyQuota, view: PoolView, window: Window, now: int) -> int:
    limit = lowest_limit(quota, view, window, now)
    if isinstance(quota, CalendarQuota):
        return limit
    price = view.pool.price_microdollars_per_hour
    return limit * 3_600 // price if price > 0 else window.end - window.start


def _seconds_a_day(quota: Quota, view: PoolView, now: int) -> float:
    if not isinstance(quota, CalendarQuota | MoneyQuota):
        return float("inf")
    window = next(iter(quota.calendar.windows(now, now + 1)))
    return _seconds(quota, view, window, now) * DAY / (window.end - window.start)
