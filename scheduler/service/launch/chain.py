"""Chains: the next job of the plan continues in a running session whose lane has ended.

The new lane is stored in the run before its order is written. The order is an object in the artifact store whose key
names the previous lane; it is created once. If the session never accepts it, the session ends and the job waits
again.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy import Connection

from config.errors import ConfigError
from jobs.lane_report import LaneReport, longest_wait
from jobs.nouns.pool import Pool
from jobs.payload.bounds import read_json
from jobs.spec import JobSpec
from platforms.artifacts.base import StoreError
from platforms.image import options_for
from scheduler.core import job as job_arrows
from scheduler.core.job import Queued
from scheduler.core.plan import Placement, Plan
from scheduler.core.reconcile import LaneEnd
from scheduler.core.run import Lane, Outcome, Run, Running
from scheduler.core.snapshot import JobView, PoolView, Snapshot
from scheduler.service.facts import halvings
from scheduler.service.facts.apply import close_lane
from scheduler.service.facts.snapshot import gives_secrets, load_snapshot
from scheduler.service.faults.isolation import apart
from scheduler.service.launch.inputs import trees_of
from scheduler.service.launch.launch import launch_request, new_lane, order_of, pin_parent, prepare
from scheduler.service.launch.launch_document import FORMAT, store_lanes
from scheduler.service.outside.ports import Ports
from scheduler.store import events, jobs, limits, runs, trees

_ORDER_BYTES = 16 << 20
_AGAIN_SECONDS = 1_800  # a job that is planned on another pool within this time stays with that plan


@dataclass(frozen=True, slots=True)
class Slot:
    """The devices of an ended lane ``before``, which wait for an order; ``idle`` if no lane of the session runs."""

    run: Run
    before: Lane
    idle: bool


def continue_sessions(ports: Ports, plan: Plan | None, now: int, unopened: Collection[str], *, news: bool) -> bool:
    """Store which jobs continue in running sessions, and write their orders; return whether anything changed.

    An idle session without a next job gets an order to end; without ``news`` only idle sessions are handled.
    """
    opened = (ports.platforms.get(pool) for pool in ports.pools if pool not in unopened)
    if not any(platform is not None and platform.capabilities.takes_orders for platform in opened):
        return False
    with ports.database.read() as tx:
        sessions, orders, slots = dict[str, Run](), list[tuple[str, Lane]](), list[Slot]()
        for run in runs.live(tx):
            read = partial(_lanes_and_slots, ports, tx, run, unopened, now, news=news)
            if (parts := apart(ports, "chain.failed", read, None, run=run.key)) is not None:
                sessions[run.key] = run
                orders += [(run.key, lane) for lane in parts[0]]
                slots += parts[1]
        snapshot: Snapshot | None = None
        if slots and limits.paused(tx) is None:
            load = partial(load_snapshot, tx, ports.pools, now, ports.policy.horizon_seconds)
            snapshot = apart(ports, "chain.failed", load, None)
    to_end = {(slot.run.key, slot.before.index) for slot in slots if slot.idle}
    chained = set[str]()
    for slot in slots:
        excluded = {lane.job for _, lane in orders}
        if snapshot is None:
            break
        choose = partial(next_job, snapshot, plan, slot, excluded)
        if (placement := apart(ports, "chain.failed", choose, None, run=slot.run.key)) is None:
            continue
        to_end.discard((slot.run.key, slot.before.index))  # its inputs may still be in transfer
        if prepare(ports, [placement], (), quota=False)[0]:
            reserve = partial(_reserve, ports, sessions[slot.run.key], slot.before, placement, now)
            if (lane := apart(ports, "chain.failed", reserve, None, run=slot.run.key)) is not None:
                orders.append((slot.run.key, lane))
                chained.add(slot.run.key)
                sessions[slot.run.key] = replace(slot.run, lanes=(*sessions[slot.run.key].lanes, lane))
    work = {f"{key} {lane.index}": partial(_put_order, ports, sessions[key], lane) for key, lane in orders}
    ends = {(key, before) for key, before in to_end if key not in chained}
    work |= {
        f"{key} {before} ends": partial(_put, ports, sessions[key], before, {"lane": None}) for key, before in ends
    }
    open_ = ports.calls.gather("order", work) if work else {}
    closed = [(key, lane) for key, lane in orders if open_.get(f"{key} {lane.index}") is False]
    for key, lane in closed:
        apart(ports, "chain.failed", partial(_withdraw, ports, key, lane, now), None, run=key)
    return bool(chained or closed)


def _lanes_and_slots(
    ports: Ports, tx: Connection, run: Run, unopened: Collection[str], now: int, *, news: bool
) -> tuple[list[Lane], list[Slot]] | None:
    """Return the lanes of a session whose orders may be missing, and its slots; None if it takes no orders now."""
    if not news and all(lane.outcome is None and lane.begun_at is None for lane in run.lanes):
        return None
    platform = ports.platforms.get(run.pool)
    able = platform is not None and platform.capabilities.takes_orders and run.pool in ports.pools
    if not able or run.pool in unopened or not isinstance(run.state, Running):
        return None
    reports = runs.heartbeats(tx, [run.key])
    free = _free_lanes(tx, run) if news else []
    slots = [slot for slot in open_slots(run, reports, free, now) if news or slot.idle]
    # Continued lanes that the session has not confirmed yet.
    open_lanes = [lane for lane in run.lanes if lane.begun_at is not None and lane.outcome is None]
    return [lane for lane in open_lanes if (run.key, lane.index) not in reports], slots


def _free_lanes(tx: Connection, run: Run) -> list[Lane]:
    """Return placeholder lanes for the devices without a job at launch, numbered as in the runner."""
    launched = events.tail(tx, limit=1, kinds=["run.submit"], subject=run.key)
    free = launched[0].data.get("free", ()) if launched else ()
    return [Lane(index, "", 0, (device,), None) for index, device in free]


def open_slots(
    run: Run, reports: Mapping[tuple[str, int], LaneReport], free_lanes: Sequence[Lane], now: int
) -> list[Slot]:
    """Return the lanes after which a job can continue; only a runner that reports waiting gets an order.

    ``free_lanes`` are those of :func:`_free_lanes`; they wait while other lanes run.
    """
    slots = []
    works = any(lane.outcome is None for lane in run.lanes)
    heard = [report for lane in run.lanes if (report := reports.get((run.key, lane.index))) and report.ended_at]
    left = max((report.ended_at or 0 for report in heard), default=0) + longest_wait(heard)
    if (works and now < run.deadline) or (not works and now <= left):
        waiting = {report.lane for report in heard if report.waits_until is not None}
        ended = [lane for lane in run.lanes if lane.outcome is not None and lane.index in waiting]
        free = [lane for lane in ended if not any(other.continues(lane) for other in run.lanes)]
        slots += [Slot(run, lane, not works) for lane in free]
    if works and now < run.deadline and any(key == run.key for key, _ in reports):
        unused = [lane for lane in free_lanes if not any(other.continues(lane) for other in run.lanes)]
        slots += [Slot(run, lane, idle=False) for lane in unused]
    return slots


def next_job(snapshot: Snapshot, plan: Plan | None, slot: Slot, excluded: Collection[str] = ()) -> Placement | None:
    """Return the job that continues in a slot, as a placement until the slot's end; None if no job can use it.

    Jobs planned on this pool come first, since that saves a session, then jobs without a session planned soon. Among
    them the dispatcher decides, as for a free pool with the slot's devices.
    """
    view = next(view for view in snapshot.pools if view.pool.name == slot.run.pool)
    if view.closed_until is not None:
        return None
    left, name = slot.run.deadline - snapshot.now, slot.run.pool
    place = replace(
        view.pool,
        quotas=(),
        hours=(),
        sessions_max=1,
        device_counts=(),
        devices_per_session=max(1, len(slot.before.devices)),
        session_cap_seconds=max(0, min(left, view.pool.session_cap_seconds)),
        overrun_seconds=0,
    )
    excluded = {lane.job for lane in slot.run.lanes}.union(excluded)
    waiting = [job for job in snapshot.jobs if job.running is None and job.blocked is None and job.name not in excluded]
    planned: dict[str, Placement] = {}  # by job the first
    for placement in sorted(plan.placements if plan else (), key=lambda one: one.start, reverse=True):
        planned |= dict.fromkeys((lane.job for lane in placement.lanes), placement)

    def is_planned_here(job: JobView) -> bool:
        return job.name in planned and planned[job.name].pool == name

    def is_free(job: JobView) -> bool:
        return job.name not in planned or planned[job.name].start > snapshot.now + _AGAIN_SECONDS

    for wanted in ([job for job in waiting if is_planned_here(job)], [job for job in waiting if is_free(job)]):
        if (chosen := _dispatched(snapshot, PoolView(place), wanted, left)) is not None:
            return chosen
    return None


def _dispatched(snapshot: Snapshot, place: PoolView, wanted: Sequence[JobView], left: int) -> Placement | None:
    from scheduler.planner.dispatch.dispatcher import dispatch

    if not wanted or left <= 0:
        return None
    progress = {job.name: done for job in snapshot.jobs if (done := snapshot.progress(job.name)) is not None}
    names = {job.name for job in wanted}
    finished = {name: done for name, done in {**snapshot.finished, **progress}.items() if name not in names}
    alone = Snapshot(snapshot.now, tuple(wanted), (place,), left, finished)
    return next(iter(dispatch(alone).due_now), None)


def _reserve(ports: Ports, run: Run, before: Lane, placement: Placement, now: int) -> Lane | None:
    """Store that a job continues after a lane, unless something that it needs is missing or has changed."""
    pool, planned = ports.pools[run.pool], placement.lanes[0]
    able = replace(
        ports.platforms[pool.name].capabilities, mounts=frozenset()
    )  # nothing can be attached to a running session
    with ports.write() as tx:
        record = jobs.get(tx, planned.job)
        inputs = trees_of(record.spec, trees.copies(tx), able)
        if not isinstance(record.state, Queued) or inputs is None or not _fits_session(tx, run, pool, record.spec):
            return None
        if planned.job in ports.calls.under_way("components") or not pin_parent(ports, tx, record, now):
            return None
        budget = halvings.longest(tx, [(record.spec, planned.devices)])
        held = before.job and halvings.account(jobs.get(tx, before.job, removed=True).spec)
        if budget is not None and budget < (0 if held == halvings.account(record.spec) else run.held_until - now):
            return None  # otherwise the lane before holds these hours of the same budget already
        index = 1 + max(lane.index for lane in (*run.lanes, *_free_lanes(tx, run)))
        lane = new_lane(tx, record, pool, index, before.devices[: planned.devices], inputs)
        lane = replace(lane, begun_at=now)
        restore = [manifest.key for manifest in order_of(tx, [planned.job]).restore[planned.job]]
        runs.add_lane(tx, run, lane, restore, now)
        active = job_arrows.activate(record.state, run.key, now)
        jobs.change_state(tx, planned.job, record.state, active, "activate", now, run=run.key)
    ports.log.info("run.chain", run=run.key, job=planned.job, lane=lane.index, after=before.job)
    return lane


def _withdraw(ports: Ports, key: str, lane: Lane, now: int) -> None:
    """Requeue a job whose session did not accept its order, because the session is ending or its runner has died."""
    with ports.write() as tx:
        run = runs.get(tx, key)
        if any(mine.index == lane.index and mine.outcome is None for mine in run.lanes):
            end = LaneEnd(lane.index, lane.job, Outcome.PREEMPTED, None, None, "its session accepts no further jobs")
            close_lane(ports, tx, run, end, now)


def _fits_session(tx: Connection, run: Run, pool: Pool, spec: JobSpec) -> bool:
    """Return whether a session has the image and the secrets that a job needs."""
    first = jobs.get(tx, run.lanes[0].job).spec
    images = [options_for(one, pool.platform, pool.options).get("image") for one in (spec, first)]
    if images[0] != images[1] or not spec.secrets or not gives_secrets(pool):
        return images[0] == images[1]
    launched = events.tail(tx, limit=1, kinds=["run.submit"], subject=run.key)
    return bool(launched) and set(spec.secrets) <= set(launched[0].data.get("secrets", ()))


def _put_order(ports: Ports, run: Run, lane: Lane) -> bool:
    """Write the order of a stored lane; return whether it exists. Idempotent: the first order stays."""
    with ports.database.read() as tx:
        order, free = order_of(tx, [lane.job]), _free_lanes(tx, run)
    before = max((other for other in (*run.lanes, *free) if lane.continues(other)), key=lambda other: other.index)
    try:
        store_lanes(ports.artifacts, run)
        launch = launch_request(ports, replace(run, lanes=(lane,)), order).launch
    except (StoreError, ConfigError) as error:
        ports.log.warning("order.failed", run=run.key, lane=lane.index, why=str(error))
        return True
    return _put(ports, run, before.index, {"lane": launch["lanes"][0], "store": launch["store"]})


def _put(ports: Ports, run: Run, before: int, what: Mapping[str, Any]) -> bool:
    """Write an order unless one exists; return False if the existing order says that no job follows."""
    key = f"runs/{run.key}/lane-{before}/next.json"
    document = {"format": FORMAT, "run": run.key, "after": before, **what}
    try:
        if ports.artifacts.create(key, json.dumps(document).encode()):
            return True
        return read_json(ports.artifacts.read(key, _ORDER_BYTES))["lane"] is not None
    except (StoreError, ValueError, KeyError, TypeError) as error:  # the next cycle tries again
        ports.log.warning("order.failed", run=run.key, lane=before, why=str(error))
        return True
