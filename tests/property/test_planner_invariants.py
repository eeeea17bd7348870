"""What must hold of every plan, each checked from its definition with code of its own, not the verifier's."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jobs.nouns.quota import CalendarQuota, FirstUseQuota, MoneyQuota, RollingQuota
from jobs.nouns.window import DAY, HOUR
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.model.case import make_case
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.planner.verify import verify
from tests.lab.night import share
from tests.lab.planner.strategies import snapshots

if TYPE_CHECKING:
    from jobs.nouns.quota import Quota
    from jobs.nouns.window import Calendar
    from scheduler.core.snapshot import JobView, PoolView, Snapshot

QUICK = PlannerOptions(search_steps=3)
QUARTER = 900  # every local midnight of every zone is a whole quarter of an hour in UTC


def held(view: PoolView, placements: list[Placement]) -> list[tuple[int, int]]:
    """What counts against the pool's quotas: what was charged, what is held, and the plan with its overrun."""
    spans = [(charge.start, charge.end) for charge in view.charges]
    return spans + [(placed.start, placed.end + view.pool.overrun_seconds) for placed in placements]


def within(spans: list[tuple[int, int]], start: int, end: int) -> int:
    return sum(max(0, min(end, stop) - max(start, begin)) for begin, stop in spans)


def local_window(calendar: Calendar, instant: int) -> tuple[int, str]:
    """A name for the window an instant lies in, read off the wall clock."""
    day = datetime.fromtimestamp(instant, UTC).astimezone(ZoneInfo(calendar.zone)).date()
    if calendar.period == "week":
        day -= timedelta(days=(day.weekday() - calendar.weekday) % 7)
    return day.toordinal(), calendar.period


def limits_seen(quota: Quota, view: PoolView, start: int, end: int) -> int:
    """The highest limit in force at any quarter of an hour of [start, end)."""
    declared = quota.limit_microdollars if isinstance(quota, MoneyQuota) else quota.limit_seconds
    found = [
        next(
            (seen.limit for seen in view.observed if seen.quota == quota.name and seen.start <= t < seen.end), declared
        )
        for t in (start, *range(start - start % QUARTER + QUARTER, end, QUARTER))
    ]
    return max(found)


def quarters(start: int, end: int) -> list[tuple[int, int]]:
    edges = [start, *range(start - start % QUARTER + QUARTER, end, QUARTER), end]
    return list(pairwise(edges))


def overspent(quota: Quota, view: PoolView, placements: list[Placement]) -> list[str]:
    """Every window that the plan spends more of than there is."""
    spans, ours = held(view, placements), held(replace(view, charges=()), placements)
    if isinstance(quota, CalendarQuota | MoneyQuota):
        return overspent_calendar(quota, view, spans, ours)
    if isinstance(quota, RollingQuota):
        ends = {stop for _, stop in spans} | {begin + quota.span_seconds for begin, _ in spans}
        windows = [(end - quota.span_seconds, end) for end in ends]
    else:
        windows, closes = [], -1
        for second in sorted({edge for begin, stop in spans for edge in (begin, *range(begin, stop, 60))}):
            if second >= closes:
                closes = second + quota.span_seconds
                windows.append((second, closes))
    # Spans from first use are looked for minute by minute.
    slack = 60 if isinstance(quota, FirstUseQuota) else 0
    return [
        f"{quota.name}: {within(spans, *window)} of {quota.limit_seconds} in {window}"
        for window in windows
        if within(ours, *window) and within(spans, *window) > quota.limit_seconds + slack
    ]


def overspent_calendar(
    quota: CalendarQuota | MoneyQuota, view: PoolView, spans: list[tuple[int, int]], ours: list[tuple[int, int]]
) -> list[str]:
    """Windows are added up quarter by quarter of an hour, each of which lies in one window of the wall clock."""
    rate = view.pool.price_microdollars_per_hour / 3_600 if isinstance(quota, MoneyQuota) else 1.0
    used: dict[tuple[int, str], float] = {}
    planned: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for begin, stop in spans:
        for left, right in quarters(begin, stop):
            name = local_window(quota.calendar, left)
            used[name] = used.get(name, 0.0) + (right - left) * rate
    for begin, stop in ours:
        for left, right in quarters(begin, stop):
            planned.setdefault(local_window(quota.calendar, left), []).append((left, right))
    limits = {
        name: max(limits_seen(quota, view, left, right) for left, right in pieces) for name, pieces in planned.items()
    }
    return [
        f"{quota.name}: {used[name]:.0f} of {limit} in {name}"
        for name, limit in limits.items()
        if used[name] > limit + len(spans)  # each charge in money is rounded up
    ]


def no_window_of_any_quota_is_overspent(snapshot: Snapshot, plan: Plan) -> None:
    """Days of 23, 23.5, 24.5 and 25 hours, weeks, rolling spans, spans from first use, money, observed limits."""
    for view in snapshot.pools:
        mine = [placed for placed in plan.placements if placed.pool == view.pool.name]
        for quota in view.pool.quotas:
            assert overspent(quota, view, mine) == []


def nothing_overlaps_that_must_not(snapshot: Snapshot, plan: Plan) -> None:
    """Sessions per pool, devices per session, sessions per job: counted at every start."""
    pools = {view.pool.name: view for view in snapshot.pools}
    for placed in plan.placements:
        view = pools[placed.pool]
        spans = [(run.start, run.held_until) for run in view.live]
        spans += held(replace(view, charges=()), [one for one in plan.placements if one.pool == placed.pool])
        assert sum(begin <= placed.start < stop for begin, stop in spans) <= view.pool.sessions_max
        assert sum(planned_lane.devices for planned_lane in placed.lanes) <= view.pool.devices_per_session
        assert 0 < placed.end - placed.start <= view.pool.session_cap_seconds
        for planned_lane in placed.lanes:
            others = [one for one in plan.placements if one is not placed and planned_lane.job in _jobs(one)]
            assert all(one.end <= placed.start or one.start >= placed.end for one in others)


def _jobs(placed: Placement) -> set[str]:
    return {planned_lane.job for planned_lane in placed.lanes}


def needed(snapshot: Snapshot, placed: Placement, planned_lane: PlannedLane, job: JobView) -> tuple[float, float]:
    """Return the seconds of training of a lane, and those of set-up, saves and margin."""
    pool = next(view.pool for view in snapshot.pools if view.pool.name == placed.pool)
    speed = (
        job.rates[pool.name].steps_per_second
        * job.device_speedup[min(planned_lane.devices, len(job.device_speedup)) - 1]
    )
    if len(placed.lanes) > 1:
        speed *= pool.sharing
    trained = planned_lane.steps / speed
    save = job.checkpoint_seconds[pool.name]
    every = (2 * save * pool.mtbf_seconds) ** 0.5
    saves = max(1.0, trained / every) * save if save else 0.0
    return trained, job.setup_seconds[pool.name] + saves + pool.stop_margin_seconds


def work_is_conserved_and_no_session_is_useless(snapshot: Snapshot, plan: Plan) -> None:
    """Set-up, training, saves and margin fit the session; nobody trains more than is left; every launch is worth it."""
    jobs = {job.name: job for job in snapshot.jobs}
    pools = {view.pool.name: view.pool for view in snapshot.pools}
    done = dict.fromkeys(jobs, 0)
    for placed in sorted(plan.placements, key=lambda one: one.start):
        idle = []
        for planned_lane in placed.lanes:
            trained, overhead = needed(snapshot, placed, planned_lane, jobs[planned_lane.job])
            idle.append(placed.end - placed.start - trained - overhead)
            done[planned_lane.job] += planned_lane.steps
            finishes = (
                done[planned_lane.job] == jobs[planned_lane.job].remaining_steps
                or jobs[planned_lane.job].running is not None
            )
            assert planned_lane.steps > 0
            rate = planned_lane.steps / trained
            assert finishes or trained >= pools[placed.pool].session_seconds_min - 2 - 1 / rate
        assert min(idle) >= -1
    for name, steps in done.items():
        assert steps <= jobs[name].remaining_steps


def no_session_is_lost_to_a_slow_start(snapshot: Snapshot, plan: Plan) -> None:
    """Who goes on afterwards trains as long as is worth a launch even if set-up and save take what nine in ten take.

    Only a session as long as the pool allows is tried whatever they take.
    """
    jobs = {job.name: job for job in snapshot.jobs}
    pools = {view.pool.name: view.pool for view in snapshot.pools}
    done = dict.fromkeys(jobs, 0)
    for placed in sorted(plan.placements, key=lambda one: one.start):
        pool, length = pools[placed.pool], placed.end - placed.start
        for planned_lane in placed.lanes:
            job = jobs[planned_lane.job]
            done[planned_lane.job] += planned_lane.steps
            setup = job.setup_seconds[pool.name] * (1 + 1.3 * job.setup_sigma[pool.name])
            save = job.checkpoint_seconds[pool.name] * (1 + 1.3 * job.checkpoint_sigma[pool.name])
            finishes = done[planned_lane.job] == job.remaining_steps or job.running is not None
            if not finishes and length < pool.session_cap_seconds:
                speed = job.speed(pool.name, planned_lane.devices)
                worth_it = pool.session_seconds_min - 2 - 1 / speed
                assert length - setup - save - pool.stop_margin_seconds >= worth_it


def no_child_starts_before_its_parent_has_saved_enough(snapshot: Snapshot, plan: Plan) -> None:
    """Counting what is checkpointed now, what live runs save at their end, and planned steps as they are made."""
    jobs = {job.name: job for job in snapshot.jobs}
    live = {name: run.deadline for view in snapshot.pools for run in view.live for name in run.jobs}
    for placed in plan.placements:
        for planned_lane in placed.lanes:
            gate = jobs[planned_lane.job].gate
            if gate is None:
                continue
            parent = jobs.get(gate.parent)
            if parent is None:
                assert snapshot.finished[gate.parent] >= gate.fraction - 1e-6
                continue
            saved = parent.done_step
            if live.get(parent.name, placed.start + 1) <= placed.start:
                saved = parent.target_step  # an estimate: at most everything
            for session in plan.placements:
                for other in session.lanes:
                    if other.job == parent.name and session.start < placed.start:
                        trained, _ = needed(snapshot, session, other, parent)
                        setup = parent.setup_seconds[session.pool]
                        share = (placed.start + 1 - session.start - setup) / trained
                        saved += ceil(other.steps * min(1.0, max(0.0, share)))
            assert saved >= gate.fraction * parent.target_step - 1e-6


def every_open_job_starts_runs_or_has_a_reason(snapshot: Snapshot, plan: Plan) -> None:
    """No job is forgotten, and none is both started and deferred."""
    started = {planned_lane.job for placement in plan.due_now for planned_lane in placement.lanes}
    deferred = {deferral.job for deferral in plan.deferrals}
    running = {job.name for job in snapshot.jobs if job.running is not None}
    done = {job.name for job in snapshot.jobs if job.remaining_steps == 0}
    assert started | deferred | running | done == {job.name for job in snapshot.jobs}
    assert not started & deferred
    assert not (started | deferred) & running
    assert all(deferral.reason.sentence() for deferral in plan.deferrals)


def the_verifier_finds_nothing(snapshot: Snapshot, plan: Plan) -> None:
    """Nor did any layer have to do without another."""
    assert verify(snapshot, plan) == []
    assert plan.warnings == ()


PROMISES = (
    no_window_of_any_quota_is_overspent,
    nothing_overlaps_that_must_not,
    work_is_conserved_and_no_session_is_useless,
    no_session_is_lost_to_a_slow_start,
    no_child_starts_before_its_parent_has_saved_enough,
    every_open_job_starts_runs_or_has_a_reason,
    the_verifier_finds_nothing,
)


@given(snapshots())
@settings(max_examples=share(100))
def test_every_plan_keeps_every_promise(snapshot: Snapshot) -> None:
    """The dispatcher's plan, that of all layers, and that carried on a little later. None is worth more than its bound.

    A promise is a function above; all are asked about the same plans, because plans are what takes time here.
    """
    plan, later = Planner(QUICK).plan(snapshot), replace(snapshot, now=snapshot.now + 600)
    carried_on = Planner(QUICK).plan(later, plan)
    plain = dispatch(snapshot)
    for seen, found in ((snapshot, plain), (snapshot, plan), (later, carried_on)):
        for promise in PROMISES:
            promise(seen, found)
    # Prices may keep hours for later, but never all of them: no stall.
    assert bool(plan.placements) == bool(plain.placements)
    for found in (plan, carried_on):
        assert found.bound is not None
        assert found.value <= found.bound * (1 + 1e-6) + 1e-6


@given(snapshots())
@settings(max_examples=share(40))
def test_no_deadline_apart_all_layers_are_worth_what_the_dispatcher_is_worth(snapshot: Snapshot) -> None:
    """Where deadlines are firm, a plan may give up value for them."""
    soft = Planner(replace(QUICK, firm_deadlines=False)).plan(snapshot)
    assert soft.value >= dispatch(snapshot).value * (1 - 1e-9)


@given(snapshots(), st.data())
@settings(max_examples=share(25))
def test_any_order_of_the_input_gives_the_same_plan(snapshot: Snapshot, data: st.DataObject) -> None:
    """Also when an earlier plan is carried on."""
    jobs = tuple(data.draw(st.permutations(snapshot.jobs)))
    pools = tuple(data.draw(st.permutations(snapshot.pools)))
    turned = replace(snapshot, jobs=jobs, pools=pools)
    plan = Planner(QUICK).plan(snapshot)
    assert Planner(QUICK).plan(turned).digest == plan.digest
    later = [replace(found, now=snapshot.now + 1_800) for found in (snapshot, turned)]
    assert len({Planner(QUICK).plan(found, plan).digest for found in later}) == 1


def bound(snapshot: Snapshot) -> float:
    """The bound of a plan of all layers, without the plan."""
    warnings: list[str] = []
    _, found, _ = Planner(QUICK).prices(make_case(snapshot), warnings)
    assert warnings == []
    assert found is not None
    return found


@given(snapshots(), st.integers(0, 2))
@settings(max_examples=share(40))
def test_the_bound_never_rises_when_a_pool_is_closed(snapshot: Snapshot, number: int) -> None:
    """Closing a pool for a day lowers what is possible, or leaves it."""
    number %= len(snapshot.pools)
    closed = replace(snapshot.pools[number], closed_until=snapshot.now + DAY)
    pools = (*snapshot.pools[:number], closed, *snapshot.pools[number + 1 :])
    assert bound(replace(snapshot, pools=pools)) <= bound(snapshot) * (1 + 1e-6) + 1e-6


@given(snapshots(), st.integers(0, 2), st.floats(0.0, 0.95))
@settings(max_examples=share(25))
def test_the_bound_falls_with_every_quota(snapshot: Snapshot, number: int, share: float) -> None:
    """Cutting the limits of one pool, its sessions or a job's place in the week never raises what is possible."""
    view = snapshot.pools[number % len(snapshot.pools)]
    assume(view.pool.quotas)
    quotas = tuple(_cut(quota, share) for quota in view.pool.quotas)
    observed = tuple(replace(seen, limit=int(seen.limit * share)) for seen in view.observed)
    less = replace(view, pool=replace(view.pool, quotas=quotas), observed=observed)
    pools = tuple(less if found is view else found for found in snapshot.pools)
    assert bound(replace(snapshot, pools=pools)) <= bound(snapshot) * (1 + 1e-6) + 1e-6


def _cut(quota: Quota, share: float) -> Quota:
    if isinstance(quota, MoneyQuota):
        return replace(quota, limit_microdollars=int(quota.limit_microdollars * share))
    return replace(quota, limit_seconds=int(quota.limit_seconds * share))


@given(snapshots(), st.data())
@settings(max_examples=share(40))
def test_the_verifier_refuses_what_was_broken_on_purpose(snapshot: Snapshot, data: st.DataObject) -> None:
    """One session of a valid plan is changed so that it must break a rule; the verifier names it."""
    plan = dispatch(snapshot)
    assume(plan.placements)
    number = data.draw(st.integers(0, len(plan.placements) - 1))
    placed = plan.placements[number]
    planned_lane = placed.lanes[0]
    cap = next(view.pool.session_cap_seconds for view in snapshot.pools if view.pool.name == placed.pool)
    broken = data.draw(
        st.sampled_from(
            (
                replace(placed, end=placed.start + cap + 1),
                replace(placed, start=snapshot.now - 1),
                replace(placed, start=placed.end, end=placed.start),
                replace(placed, lanes=(replace(planned_lane, steps=planned_lane.steps * 2 + 60),)),
                replace(placed, lanes=(replace(planned_lane, steps=0),)),
                replace(placed, lanes=(*placed.lanes, *placed.lanes, *placed.lanes, *placed.lanes)),
                replace(placed, lanes=(replace(planned_lane, job="nobody"),)),
                replace(placed, lanes=()),
                replace(placed, pool="nowhere"),
            )
        )
    )
    changed = (*plan.placements[:number], broken, *plan.placements[number + 1 :])
    assert verify(snapshot, replace(plan, placements=changed))
    twice = (*plan.placements, placed)
    assert verify(snapshot, replace(plan, placements=twice))


@given(snapshots())
@settings(max_examples=share(40))
def test_a_quota_that_shrank_under_a_plan_makes_it_invalid(snapshot: Snapshot) -> None:
    """The plan of yesterday's quota is refused once nothing is left, and the next plan keeps to what is."""
    plan = dispatch(snapshot)
    limited = [view for view in snapshot.pools if view.pool.quotas and _used(plan, view.pool.name)]
    assume(limited)
    gone = tuple(
        replace(view, observed=(), pool=replace(view.pool, quotas=tuple(_cut(q, 0.0) for q in view.pool.quotas)))
        if view in limited
        else view
        for view in snapshot.pools
    )
    shrunk = replace(snapshot, pools=gone)
    free = all(view.pool.price_microdollars_per_hour == 0 for view in limited)
    assume(not free or any(not isinstance(q, MoneyQuota) for view in limited for q in view.pool.quotas))
    assert verify(shrunk, plan)
    again = Planner(QUICK).plan(shrunk, plan)
    assert verify(shrunk, again) == []
    assert again.warnings == ()


def _used(plan: Plan, pool: str) -> bool:
    return any(placed.pool == pool and placed.end - placed.start > HOUR // 60 for placed in plan.placements)
