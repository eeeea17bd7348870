"""Whatever the jobs and pools are: the plan breaks no rule, stalls nowhere and does not depend on their order."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.spec import Gate, Needs
from scheduler.core.admission import room
from scheduler.core.ledger import Charge
from scheduler.core.pool import Pool
from scheduler.core.quota import CalendarQuota, FirstUseQuota, MoneyQuota, ObservedLimit, RollingQuota
from scheduler.core.reasons import HeldByPerson
from scheduler.core.snapshot import JobView, LiveRun, PoolView, Rate, Snapshot
from scheduler.core.window import DAY, HOUR, Calendar, DailyHours
from scheduler.planner import Options, Planner, dispatch, verify
from scheduler.planner.book import Book

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.core.plan import Plan

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago")
# A day before the clocks change in Berlin (both ways), in New York and on Lord Howe Island, and a plain day.
EPOCHS = (1_774_656_000, 1_792_800_000, 1_772_928_000, 1_790_985_600, 1_763_769_600)


def plan_quickly(snapshot: Snapshot, incumbent: Plan | None = None) -> Plan:
    """All layers, with a few steps of local search only."""
    return Planner(Options(search_steps=3)).plan(snapshot, incumbent)


@st.composite
def quotas(draw: st.DrawFn) -> tuple[CalendarQuota | RollingQuota | FirstUseQuota | MoneyQuota, ...]:
    limit = draw(st.integers(0, 30)) * HOUR + draw(st.integers(0, 3_599))
    calendar = Calendar(draw(st.sampled_from(("day", "week"))), draw(st.sampled_from(ZONES)), draw(st.integers(0, 6)))
    kinds: tuple[CalendarQuota | RollingQuota | FirstUseQuota | MoneyQuota, ...] = (
        CalendarQuota("calendar", limit, calendar),
        RollingQuota("rolling", limit % (12 * HOUR), draw(st.sampled_from((DAY, 12 * HOUR)))),
        FirstUseQuota("first use", limit % (12 * HOUR), DAY),
        MoneyQuota("money", draw(st.integers(0, 20_000_000)), calendar),
    )
    return tuple(draw(st.lists(st.sampled_from(kinds), max_size=2, unique_by=type)))


@st.composite
def pool_views(draw: st.DrawFn, name: str, now: int) -> PoolView:
    hours = draw(
        st.sampled_from(((), (DailyHours("Europe/Berlin", 20 * HOUR, 8 * HOUR),), (DailyHours("UTC", 0, 5 * HOUR),)))
    )
    pool = Pool(
        name=name,
        platform="fake",
        accelerator="gpu",
        quotas=draw(quotas()),
        hours=hours,
        devices_per_session=draw(st.integers(1, 3)),
        sessions_max=draw(st.integers(1, 3)),
        session_cap_seconds=draw(st.sampled_from((2, 4, 12))) * HOUR,
        session_seconds_min=draw(st.sampled_from((600, 1_800))),
        vram_gib=draw(st.sampled_from((8.0, 16.0))),
        overrun_seconds=draw(st.sampled_from((0, 300))),
        price_microdollars_per_hour=draw(st.sampled_from((0, 736_000))),
        sharing=draw(st.sampled_from((1.0, 0.8))),
    )
    charges = []
    for _ in range(draw(st.integers(0, 3))):
        start = now - draw(st.integers(0, 2 * DAY))
        end = min(now, start + draw(st.integers(1, 4 * HOUR)))
        if end > start:
            charges.append(Charge(start, end, price_microdollars_per_hour=pool.price_microdollars_per_hour))
    observed = (
        (ObservedLimit("calendar", now - DAY, now + 2 * DAY, draw(st.integers(0, 40)) * HOUR, now),)
        if draw(st.booleans())
        else ()
    )
    closed = draw(st.sampled_from((None, None, None, now + 5 * HOUR)))
    return PoolView(pool, tuple(charges), (), observed, closed, "switched off")


@st.composite
def job_views(draw: st.DrawFn, number: int, pools: Sequence[Pool], now: int) -> JobView:
    names = [pool.name for pool in pools]
    target = draw(st.integers(1, 400_000))
    devices = draw(st.sampled_from(((1, 1), (1, 1), (1, 2), (2, 2))))
    setup = draw(st.integers(0, 1_800))
    save = draw(st.sampled_from((0, 1, 60, 300)))
    return JobView(
        name=f"job-{number}",
        weight=draw(st.sampled_from((0.5, 1.0, 1.0, 4.0))),
        target_step=target,
        done_step=draw(st.integers(0, target)) if draw(st.booleans()) else 0,
        needs=Needs(*devices, vram_gib=draw(st.sampled_from((0.0, 0.0, 12.0)))),
        rates={name: Rate(draw(st.sampled_from((0.01, 0.5, 1.0, 7.0)))) for name in names},
        setup_seconds=dict.fromkeys(names, setup),
        checkpoint_seconds=dict.fromkeys(names, save),
        device_speedup=(1.0, draw(st.sampled_from((1.0, 1.7)))),
        allowed_pools=draw(st.sampled_from(((), (), (), (names[0],), ("elsewhere",)))),
        gate=draw(st.sampled_from((None, None, Gate(f"job-{number // 2}", 0.4), Gate("gone", 0.5))))
        if number
        else None,
        not_before=draw(st.sampled_from((None, None, now + 7_777))),
        deadline=draw(st.sampled_from((None, None, now + 2 * DAY, now + 60))),
        blocked=draw(st.sampled_from((None, None, None, None, HeldByPerson("ann", "")))),
        last_pool=draw(st.sampled_from((None, names[-1]))),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    now = draw(st.sampled_from(EPOCHS)) + draw(st.integers(0, DAY))
    views = [draw(pool_views(f"pool-{number}", now)) for number in range(draw(st.integers(1, 3)))]
    pools = [view.pool for view in views]
    jobs = [draw(job_views(number, pools, now)) for number in range(draw(st.integers(0, 7)))]
    with_live_run: bool = draw(st.booleans())
    if jobs and with_live_run:
        views[0], jobs[0] = _with_live_run(views[0], jobs[0], now)
    days = draw(st.sampled_from((1, 3, 7)))
    return Snapshot(now, tuple(jobs), tuple(views), days * DAY, {"gone": draw(st.sampled_from((0.2, 0.9)))})


def _with_live_run(view: PoolView, job: JobView, now: int) -> tuple[PoolView, JobView]:
    run = LiveRun("key", now - 900, now + 3_000, now + 3_300, (job.name,))
    held = Charge(run.start, run.held_until, held=True, run=run.key)
    return (
        replace(view, live=(run,), charges=(*view.charges, held)),
        replace(job, running=run.key, blocked=None),
    )


@given(snapshots())
@settings(max_examples=200)
def test_a_plan_breaks_no_rule(snapshot: Snapshot) -> None:
    """Quotas, concurrency, devices, caps, hours, gates, releases and work: the independent verifier finds nothing."""
    assert verify(snapshot, dispatch(snapshot)) == []


@given(snapshots())
@settings(max_examples=60)
def test_the_order_of_the_input_does_not_matter(snapshot: Snapshot) -> None:
    """The same jobs and pools in another order give the same plan."""
    turned = replace(snapshot, jobs=snapshot.jobs[::-1], pools=snapshot.pools[::-1])
    assert plan_quickly(turned).digest == plan_quickly(snapshot).digest


@given(snapshots())
@settings(max_examples=100)
def test_every_layer_breaks_no_rule_and_stays_below_the_bound(snapshot: Snapshot) -> None:
    """No layer fell back, nothing is violated, V <= bound, also when the plan is carried on a little later."""
    plan = plan_quickly(snapshot)
    later = replace(snapshot, now=snapshot.now + 600)
    for found, seen in ((plan, snapshot), (plan_quickly(later, plan), later)):
        assert found.warnings == ()
        assert verify(seen, found) == []
        assert found.bound is not None
        assert found.value <= found.bound * (1 + 1e-6) + 1e-6


@given(snapshots(), st.integers(0, 2))
@settings(max_examples=40)
def test_the_bound_never_rises_when_quota_is_removed(snapshot: Snapshot, number: int) -> None:
    """Closing a pool for a day lowers what is possible, or leaves it."""
    number %= len(snapshot.pools)
    closed = replace(snapshot.pools[number], closed_until=snapshot.now + DAY)
    pools = (*snapshot.pools[:number], closed, *snapshot.pools[number + 1 :])
    less, more = plan_quickly(replace(snapshot, pools=pools)).bound, plan_quickly(snapshot).bound
    assert less is not None
    assert more is not None
    assert less <= more * (1 + 1e-6) + 1e-6


@given(snapshots())
@settings(max_examples=100)
def test_admission_says_yes_to_every_session_in_turn(snapshot: Snapshot) -> None:
    """Replayed one by one through core.admission, each session of the plan has room."""
    plan = dispatch(snapshot)
    for view in snapshot.pools:
        charges, ends = list(view.charges), [run.held_until for run in view.live]
        for placement in plan.placements:
            if placement.pool != view.pool.name:
                continue
            length = placement.end - placement.start + view.pool.overrun_seconds
            assert room(view.pool, charges, ends, placement.start, view.observed).seconds >= length
            ends.append(placement.end + view.pool.overrun_seconds)
            price = view.pool.price_microdollars_per_hour
            charges.append(Charge(placement.start, ends[-1], price_microdollars_per_hour=price))


@given(snapshots())
@settings(max_examples=100)
def test_nobody_waits_beside_a_free_session(snapshot: Snapshot) -> None:
    """If a startable job could use the room that the plan leaves now, the plan is wrong."""
    plan = dispatch(snapshot)
    waiting = {deferral.job: deferral.reason.code for deferral in plan.deferrals}
    room_left = _room_left(snapshot, plan)
    for job in snapshot.jobs:
        if waiting.get(job.name) not in {"outbid", "concurrency", "quota_empty", "leftover_too_short", "pool_closed"}:
            continue
        for view in snapshot.pools:
            usable = not job.allowed_pools or view.pool.name in job.allowed_pools
            fits = job.needs.devices_min <= view.pool.devices_per_session and job.needs.vram_gib <= view.pool.vram_gib
            long_enough = view.pool.session_seconds_min + 1_800 + 300 + 300 + 200
            assert not (usable and fits and room_left[view.pool.name] > long_enough)


def _room_left(snapshot: Snapshot, plan: Plan) -> dict[str, int]:
    taken = defaultdict(list)
    for placement in plan.due_now:
        taken[placement.pool].append(placement)
    left = {}
    for view in snapshot.pools:
        book = Book(view, snapshot.now, snapshot.now + snapshot.horizon_seconds)
        for placement in taken[view.pool.name]:
            book.take(placement.start, placement.end)
        left[view.pool.name] = book.room(snapshot.now).seconds
    return left


@given(snapshots())
@settings(max_examples=60)
def test_every_open_job_starts_runs_or_has_a_reason(snapshot: Snapshot) -> None:
    """No job is forgotten, and none is both started and deferred."""
    plan = plan_quickly(snapshot)
    started = {seat.job for placement in plan.due_now for seat in placement.seats}
    deferred = {deferral.job for deferral in plan.deferrals}
    running = {job.name for job in snapshot.jobs if job.running is not None}
    done = {job.name for job in snapshot.jobs if job.remaining_steps == 0}
    assert started | deferred | running | done == {job.name for job in snapshot.jobs}
    assert not started & deferred
    assert not (started | deferred) & running
    assert all(deferral.reason.sentence() for deferral in plan.deferrals)
