"""Anything a planner may be asked: Hypothesis strategies of quotas, pools, jobs and whole snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import assume
from hypothesis import strategies as st

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota, FirstUseQuota, MoneyQuota, RollingQuota
from jobs.nouns.window import DAY, HOUR, Calendar, DailyHours
from jobs.spec import Gate, Needs
from scheduler.core.ledger import Charge
from scheduler.core.quota import ObservedLimit
from scheduler.core.reasons import HeldByPerson
from scheduler.core.snapshot import HourShare, JobView, LiveRun, PoolView, Rate, Snapshot

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago")
# A day before the clocks change in Berlin (both ways), in New York and on Lord Howe Island, and a plain day.
EPOCHS = (1_774_656_000, 1_792_800_000, 1_772_928_000, 1_790_985_600, 1_763_769_600)


@st.composite
def quotas(draw: st.DrawFn) -> tuple[CalendarQuota | RollingQuota | FirstUseQuota | MoneyQuota, ...]:
    """None to two quotas of different shapes."""
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
    """A pool with any rules, past charges, perhaps an observed limit, perhaps closed for some hours."""
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
def counted_views(draw: st.DrawFn, name: str, now: int) -> PoolView:
    """A pool whose sessions ask for their devices, with quotas that count sessions or devices."""
    view = draw(pool_views(name, now))
    counts = draw(st.sampled_from(((1, 2, 4), (1, 2), (2, 4), (3,))))
    most = draw(st.integers(counts[-1], 9))
    by_device = draw(st.booleans())
    pool = replace(
        view.pool,
        device_counts=counts,
        devices_max=most,
        devices_per_session=counts[-1],
        sessions_max=most // counts[0],
        price_microdollars_per_hour=0,
        quotas=tuple(
            replace(quota, by_device=by_device) if isinstance(quota, CalendarQuota | RollingQuota) else quota
            for quota in view.pool.quotas
        ),
    )
    charges = tuple(
        replace(charge, devices=draw(st.sampled_from(counts)), price_microdollars_per_hour=0) for charge in view.charges
    )
    return replace(view, pool=pool, charges=charges)


@st.composite
def job_views(draw: st.DrawFn, number: int, pools: Sequence[Pool], now: int) -> JobView:
    """A job of any size, speed and needs; gated, released late, due, held or free."""
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
        setup_sigma=dict.fromkeys(names, draw(st.sampled_from((0.0, 0.0, 0.3, 2.0)))),
        checkpoint_sigma=dict.fromkeys(names, draw(st.sampled_from((0.0, 0.0, 0.9)))),
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
def snapshots(draw: st.DrawFn, *, counted: bool = False) -> Snapshot:
    """One to three pools, up to seven jobs, perhaps a live run, a horizon of a day to a week.

    The sessions of ``counted`` pools, all but one at most, ask for their devices.
    """
    now = draw(st.sampled_from(EPOCHS)) + draw(st.integers(0, DAY))
    views = [
        draw((counted_views if counted and number != 1 else pool_views)(f"pool-{number}", now))
        for number in range(draw(st.integers(1, 3)))
    ]
    pools = [view.pool for view in views]
    jobs = [draw(job_views(number, pools, now)) for number in range(draw(st.integers(0, 7)))]
    if counted:
        jobs = [draw(_moldable(job)) for job in jobs]
    with_live_run: bool = draw(st.booleans())
    if jobs and with_live_run:
        views[0], jobs[0] = _with_live_run(views[0], jobs[0], now, draw(st.sampled_from((1, 2, 4))) if counted else 1)
    days = draw(st.sampled_from((1, 3, 7)))
    return Snapshot(now, tuple(jobs), tuple(views), days * DAY, {"gone": draw(st.sampled_from((0.2, 0.9)))})


@st.composite
def sharing(draw: st.DrawFn) -> Snapshot:
    """Any snapshot, the first two or three jobs of which share hours and have had some."""
    snapshot = draw(snapshots())
    count = draw(st.sampled_from((2, 2, 3)))
    assume(len(snapshot.jobs) >= count)
    parts = draw(st.sampled_from(((0.7, 0.3), (0.5, 0.5), (0.99, 0.01)) if count == 2 else ((0.5, 0.3, 0.2),)))
    shared = [
        replace(job, deadline=None, share=HourShare("job-0", part, draw(st.integers(0, 40)) * HOUR))
        for job, part in zip(snapshot.jobs, parts, strict=False)
    ]
    return replace(snapshot, jobs=(*shared, *snapshot.jobs[count:]))


@st.composite
def _moldable(draw: st.DrawFn, job: JobView) -> JobView:
    """The job, which may run on several counts of devices and be due soon."""
    least, most = draw(st.sampled_from(((1, 1), (1, 4), (1, 8), (2, 4), (4, 4), (3, 3))))
    gains = draw(st.sampled_from(((1.0, 1.75, 1.75, 3.0), (1.0, 2.0, 3.0, 4.0), (1.0, 0.9), (1.0, 2.5))))
    hours = draw(st.sampled_from((None, None, 1, 5, 30)))
    return replace(
        job,
        needs=replace(job.needs, devices_min=least, devices_max=most),
        device_speedup=gains,
        deadline=None if hours is None else (job.not_before or EPOCHS[0]) + hours * HOUR,
    )


def _with_live_run(view: PoolView, job: JobView, now: int, devices: int = 1) -> tuple[PoolView, JobView]:
    run = LiveRun("key", now - 900, now + 3_000, now + 3_300, (job.name,), devices)
    held = Charge(run.start, run.held_until, held=True, run=run.key, devices=devices)
    return (
        replace(view, live=(run,), charges=(*view.charges, held)),
        replace(job, running=run.key, blocked=None),
    )
