"""Verify: an independent checker of plans, written from the definitions. It shares no code with the planners.

It recomputes everything from the snapshot, exact to the second: the use of every quota window, sessions and devices at
every instant, opening hours, session caps, gates against checkpointed steps, and planned work.
"""

from collections import defaultdict
from collections.abc import Iterator
from math import ceil, sqrt
from typing import assert_never

from jobs.grouping import grouped
from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota, FirstUseQuota, MoneyQuota, Quota, RollingQuota
from jobs.size import counted
from jobs.spec import Gate
from scheduler.core.ledger import Charge
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.quota import limit_at
from scheduler.core.snapshot import JobView, PoolView, Snapshot


def verify(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Return every violation as a sentence; an empty list means that the plan is valid."""
    pools = {view.pool.name: view for view in snapshot.pools}
    jobs = {view.name: view for view in snapshot.jobs}
    unknown = [
        f"{placement.pool} with {lane.job}: no such pool or job"
        for placement in plan.placements
        for lane in placement.lanes
        if placement.pool not in pools or lane.job not in jobs
    ]
    # The other checks need existing pools and jobs, and sessions that end after they start.
    backwards = [
        f"{placement.pool} at {placement.start}: {placement.end - placement.start} s is not a session length"
        for placement in plan.placements
        if placement.end <= placement.start
    ]
    if unknown or backwards:
        return unknown + backwards
    violations: list[str] = []
    for name, placements in sorted(grouped((placement.pool, placement) for placement in plan.placements).items()):
        violations += _sessions(snapshot, pools[name], placements)
        violations += _concurrency(pools[name], placements)
        for quota in pools[name].pool.quotas:
            violations += _quota(quota, pools[name], placements, snapshot.now)
    violations += _jobs(snapshot, plan, jobs, pools)
    return violations


def _sessions(snapshot: Snapshot, view: PoolView, placements: list[Placement]) -> Iterator[str]:
    pool = view.pool
    for placement in placements:
        what = f"{pool.name} at {placement.start}"
        if not snapshot.now <= placement.start < snapshot.now + snapshot.horizon_seconds:
            yield f"{what}: starts outside the horizon"
        if placement.end - placement.start > pool.session_cap_seconds:
            yield f"{what}: {placement.end - placement.start} s exceeds the longest session"
        if view.closed_until is not None and placement.start < view.closed_until:
            yield f"{what}: the pool is closed until {view.closed_until}"
        until = placement.end + pool.overrun_seconds
        if not any(o.start == placement.start and o.end == until for o in pool.open_windows(placement.start, until)):
            yield f"{what}: not open for the whole session"
        if not placement.lanes:
            yield f"{what}: it has no job"
        devices = _devices(placement)
        if pool.device_counts and (devices not in pool.device_counts or len(placement.lanes) > 1):
            yield f"{what}: {counted(devices, 'device')} for {counted(len(placement.lanes), 'job')} cannot be requested"
        if not pool.device_counts and devices > pool.devices_per_session:
            yield f"{what}: its jobs use more devices than a session has"


def _devices(placement: Placement) -> int:
    return sum(lane.devices for lane in placement.lanes)


def _concurrency(view: PoolView, placements: list[Placement]) -> Iterator[str]:
    edges = [(run.start, run.held_until, run.devices) for run in view.live]
    edges += [(placed.start, placed.end + view.pool.overrun_seconds, _devices(placed)) for placed in placements]
    for instant in sorted(placed.start for placed in placements):
        running = [devices for start, end, devices in edges if start <= instant < end]
        if len(running) > view.pool.sessions_max:
            live = counted(len(running), "session")
            yield f"{view.pool.name}: {live} at {instant}, {view.pool.sessions_max} allowed"
        if view.pool.device_counts and sum(running) > view.pool.devices_max:
            devices_held = counted(sum(running), "device")
            yield f"{view.pool.name}: {devices_held} held at {instant}, {view.pool.devices_max} allowed"


def _quota(quota: Quota, view: PoolView, placements: list[Placement], now: int) -> Iterator[str]:
    pool = view.pool
    price = pool.price_microdollars_per_hour
    mine = [
        Charge(p.start, p.end + pool.overrun_seconds, price_microdollars_per_hour=price, devices=max(1, _devices(p)))
        for p in placements
    ]
    everything = [*view.charges, *mine]
    last = max(charge.end for charge in mine)

    def used(charges: list[Charge], start: int, end: int) -> int:
        if isinstance(quota, MoneyQuota):
            return sum(charge.cost_within(start, end) for charge in charges)
        if isinstance(quota, CalendarQuota | RollingQuota) and quota.by_device:
            return sum(charge.devices * charge.within(start, end) for charge in charges)
        return sum(charge.within(start, end) for charge in charges)

    spans: list[tuple[int, int]]
    match quota:
        case CalendarQuota() | MoneyQuota():
            spans = [(window.start, window.end) for window in quota.calendar.windows(now, last)]
        case RollingQuota():
            # Use is piecewise linear in the end of the span, so its maximum is at the end or expiry of a charge.
            ends = {charge.end for charge in everything}
            ends |= {edge + quota.span_seconds for c in everything for edge in (c.start, c.end)}
            spans = [(end - quota.span_seconds, end) for end in sorted(ends) if end > now]
        case FirstUseQuota():
            spans = list(_first_use_spans(everything, quota.span_seconds))
        case _:
            assert_never(quota)
    for start, end in spans:
        if used(mine, start, end) == 0:
            continue  # the plan does not use this window
        total = used(everything, start, end)
        begins = [max(start, charge.start) for charge in mine if charge.start < end and charge.end > start]
        limit = max(limit_at(quota, begin, view.observed) for begin in begins)
        if total > limit:
            yield f"{pool.name}: {quota.name} {total} of {limit} used in [{start}, {end})"


def _first_use_spans(charges: list[Charge], span: int) -> Iterator[tuple[int, int]]:
    opened = None
    for charge in sorted(charges, key=lambda use: use.start):
        if charge.sign <= 0:
            continue
        begins = charge.start if opened is None else max(charge.start, opened)
        while begins < charge.end:
            yield begins, begins + span
            begins = opened = begins + span


def _jobs(snapshot: Snapshot, plan: Plan, jobs: dict[str, JobView], pools: dict[str, PoolView]) -> Iterator[str]:
    sessions: dict[str, list[tuple[Placement, PlannedLane]]] = defaultdict(list)
    for placement in plan.placements:
        for lane in placement.lanes:
            sessions[lane.job].append((placement, lane))
    live = {name: run for view in snapshot.pools for run in view.live for name in run.jobs}
    for name, lanes in sorted(sessions.items()):
        job = jobs[name]
        lanes.sort(key=lambda pair: pair[0].start)
        free_at = live[name].deadline if name in live else snapshot.now
        if job.blocked is not None or (job.running is not None and name not in live):
            yield f"{name}: is held or runs, and is planned"
        steps_planned = 0
        for placement, lane in lanes:
            what = f"{name} on {placement.pool} at {placement.start}"
            if placement.start < free_at:
                yield f"{what}: runs until {free_at}"
            free_at = placement.end
            if placement.start < max(job.not_before or 0, job.retry_at or 0):
                yield f"{what}: not released"
            # The steps that a live run will checkpoint are an estimate, so the rest of its job may be of any size.
            remaining = 0 if name in live else job.remaining_steps - steps_planned
            yield from _lane(what, job, pools[placement.pool].pool, placement, lane, remaining)
            steps_planned += lane.steps
            if job.gate is not None and placement.start < _gate_opens(snapshot, job.gate, jobs, pools, sessions):
                yield f"{what}: gate of {job.gate.parent} not passed"
        if steps_planned > job.remaining_steps:
            yield f"{name}: {counted(steps_planned, 'step')} planned, {job.remaining_steps} left"


def _lane(
    what: str, job: JobView, pool: Pool, placement: Placement, lane: PlannedLane, remaining: int
) -> Iterator[str]:
    needs = job.needs
    if job.allowed_pools and pool.name not in job.allowed_pools:
        yield f"{what}: pool not allowed"
        return
    if pool.name not in job.rates:
        yield f"{what}: speed unknown"
        return
    wrong_kind = needs.accelerator not in {"any", pool.kind}
    if wrong_kind or needs.vram_gib > pool.vram_gib or needs.dtype not in pool.dtypes:
        yield f"{what}: does not fit"
    if not needs.devices_min <= lane.devices <= max(needs.devices_max, needs.devices_min):
        yield f"{what}: {counted(lane.devices, 'device')}"
    speed = _speed(job, pool, placement, lane)
    trained = lane.steps / speed
    save, interval = _cadence(job, pool)
    saves = max(1.0, trained / interval) if save else 0.0
    needed = job.setup_seconds[pool.name] + trained + saves * save + pool.stop_margin_seconds
    if needed > placement.end - placement.start + 1:
        yield f"{what}: needs {needed:.0f} s for {counted(lane.steps, 'step')}"
    if lane.steps < 1 or (trained + 1 / speed + 1 < pool.session_seconds_min and lane.steps < remaining):
        yield f"{what}: {trained:.0f} s of training are not worth a session"


def _gate_opens(
    snapshot: Snapshot,
    gate: Gate,
    jobs: dict[str, JobView],
    pools: dict[str, PoolView],
    sessions: dict[str, list[tuple[Placement, PlannedLane]]],
) -> float:
    """Return the instant from which the parent's checkpoints satisfy the gate; infinity if they never do."""
    parent = jobs.get(gate.parent)
    if parent is None:
        reached = snapshot.finished.get(gate.parent, 0.0)
        return snapshot.now if reached >= gate.fraction - 1e-6 else float("inf")
    needed = ceil(gate.fraction * parent.target_step - 1e-6)
    reached_step = parent.done_step
    if reached_step >= needed:
        return snapshot.now
    for view in snapshot.pools:
        for run in view.live:
            if parent.name in run.jobs:
                trains = run.start + parent.setup_seconds[view.pool.name]
                begins = trains if parent.target_step == 1 else max(snapshot.now, trains)  # one step: all or nothing
                speed = _live_speed(parent, view.pool, run.devices)
                gained = int(speed * max(0, run.deadline - begins) + 1e-6)
                if reached_step + gained >= needed:
                    saved = _saved_after(parent, view.pool, (needed - reached_step) / speed)
                    return min(begins + saved, run.deadline - view.pool.stop_margin_seconds) - 1
                reached_step += min(parent.remaining_steps, gained)
    for placement, lane in sorted(sessions.get(parent.name, []), key=lambda pair: pair[0].start):
        if reached_step + lane.steps >= needed:
            pool = pools[placement.pool].pool
            saved = _saved_after(parent, pool, (needed - reached_step) / _speed(parent, pool, placement, lane))
            published = placement.start + parent.setup_seconds[pool.name] + saved
            return min(published, placement.end - pool.stop_margin_seconds) - 1
        reached_step += lane.steps
    return float("inf")


def _live_speed(job: JobView, pool: Pool, devices: int) -> float:
    """Return the highest steps per second that a live run can reach."""
    gains = job.device_speedup[: devices if pool.device_counts else None]
    return job.rates[pool.name].steps_per_second * (gains[-1] if pool.device_counts else max(gains))


def _saved_after(job: JobView, pool: Pool, trained: float) -> float:
    """Return the seconds after set-up at which ``trained`` seconds of training are checkpointed."""
    save, interval = _cadence(job, pool)
    return trained if not save else max(1, ceil(trained / interval - 1e-6)) * (interval + save)


def _speed(job: JobView, pool: Pool, placement: Placement, lane: PlannedLane) -> float:
    gain = job.device_speedup[min(lane.devices, len(job.device_speedup)) - 1]
    return job.rates[pool.name].steps_per_second * gain * (pool.sharing if len(placement.lanes) > 1 else 1.0)


def _cadence(job: JobView, pool: Pool) -> tuple[int, float]:
    """Return the seconds of a checkpoint, and the training seconds between two by Young's formula."""
    save = job.checkpoint_seconds[pool.name]
    return save, sqrt(2.0 * save * pool.mtbf_seconds)
