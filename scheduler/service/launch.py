"""Launch: reserve quota and seats, then call platforms by launch key with no transaction open."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from platforms.artifacts.base import StoreError
from platforms.base import LaunchRequest, Misconfigured, Observed, PlatformError, Refused, SessionState
from scheduler.core import job as job_arrows
from scheduler.core import run as run_arrows
from scheduler.core.admission import room
from scheduler.core.job import Queued
from scheduler.core.ledger import Charge, EntryKind, LedgerEntry
from scheduler.core.run import Lane, Reserved, Run, launch_key
from scheduler.core.throughput import PRIOR_SIGMA
from scheduler.service.apply import reject
from scheduler.service.grant import grant
from scheduler.service.launch_document import launch_document
from scheduler.service.overheads import Overheads
from scheduler.service.quota_books import launchable
from scheduler.service.seats import note_seats
from scheduler.service.snapshot import LOOK_BACK_SECONDS
from scheduler.store import checkpoints, events, jobs, ledger, limits, rates, runs, watched

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from jobs.checkpoint import Manifest
    from jobs.spec import JobSpec
    from scheduler.core.plan import Placement, Plan
    from scheduler.service.ports import Ports
    from scheduler.store.jobs import JobRecord

_REFUSED_SECONDS = 600  # how long a pool rests after a refusal that names no time
_MISCONFIGURED_SECONDS = 3_600  # a person must act; look again after this


def reserve(ports: Ports, plan: Plan, now: int) -> list[Run]:
    """Reserve what the plan wants to start now: one transaction, admission checked again against the ledger.

    A placement that no longer fits, or whose job is no longer queued, is skipped: the next plan sees the new facts.
    """
    due = launchable(ports, plan.due_now)
    if not due:
        return []
    prepared = [placement for placement in due if _prepare_data(ports, placement)]
    with ports.write() as tx:
        waiting = list(prepared)
        reserved = []
        for placement in prepared:
            waiting.remove(placement)
            others = [other for other in waiting if other.pool == placement.pool]
            run = _reserve_one(ports, tx, placement, others, now)
            if run is not None:
                reserved.append(run)
        return reserved


def _prepare_data(ports: Ports, placement: Placement) -> bool:
    """Make sure that every seat's training data exist before quota is set aside."""
    try:
        for seat in placement.seats:
            ports.data_prefix(seat.job)
    except (OSError, StoreError) as error:
        ports.log.error("corpus.unavailable", pool=placement.pool, why=str(error))
        return False
    return True


def _reserve_one(
    ports: Ports, tx: Connection, placement: Placement, others: Sequence[Placement], now: int
) -> Run | None:
    """Reserve one placement, leaving what ``others`` on the same pool still need; None when it no longer fits."""
    pool = ports.pools[placement.pool]
    booked = ledger.charges(tx, now - LOOK_BACK_SECONDS).get(pool.name, ())
    charges = (*booked, *watched.perhaps(tx).get(pool.name, ()))
    live_ends = [run.held_until for run in runs.live(tx) if run.pool == pool.name]
    observed = limits.observed(tx).get(pool.name, ())
    ends = [other.end + pool.overrun_seconds for other in others]
    planned = [Charge(now, end, held=True) for end in ends]
    wanted = placement.end + pool.overrun_seconds - now
    admitted = room(pool, charges, live_ends, now, observed)
    if admitted.seconds < wanted:
        ports.log.warning(
            "reserve.refused",
            pool=pool.name,
            wanted_seconds=wanted,
            admitted_seconds=admitted.seconds,
            limited_by=admitted.limited_by,
        )
        return None
    records = [jobs.get(tx, seat.job) for seat in placement.seats]
    if not all(isinstance(record.state, Queued) for record in records):
        return None
    spare = room(pool, (*charges, *planned), (*live_ends, *ends), now, observed).seconds - wanted
    deadline = placement.end + max(0, min(spare, _slack(tx, placement, records, now)))
    lanes: list[Lane] = []
    device = 0
    for index, (seat, record) in enumerate(zip(placement.seats, records, strict=True)):
        lanes.append(
            Lane(
                index=index,
                job=seat.job,
                attempt=jobs.note_launch(tx, seat.job, pool.name),
                devices=tuple(range(device, device + seat.devices)),
                restore_step=record.done_step if record.checkpoint else None,
            )
        )
        device += seat.devices
    key = launch_key(ports.policy.launch_prefix, lanes[0].job, lanes[0].attempt)
    run = Run(
        key=key,
        pool=pool.name,
        lanes=tuple(lanes),
        planned_start=now,
        deadline=deadline,
        held_until=deadline + pool.overrun_seconds,
        state=Reserved(now),
    )
    runs.insert(tx, run, now)
    ledger.append(
        tx,
        [
            LedgerEntry(
                kind=EntryKind.HOLD,
                pool=pool.name,
                run=key,
                start=now,
                end=run.held_until,
                at=now,
                price_microdollars_per_hour=pool.price_microdollars_per_hour,
                evidence="planned session",
            )
        ],
    )
    for record in records:
        active = job_arrows.activate(record.state, key, now)
        jobs.change_state(tx, record.spec.name, record.state, active, "activate", now, run=key)
    return run


def _slack(tx: Connection, placement: Placement, records: Sequence[JobRecord], now: int) -> int:
    """Return how much longer than planned a session that should finish its jobs may hold its pool.

    A session whose jobs reach their targets ends by itself and gives the rest back, so it is cheap to allow for a
    speed below the estimate; cutting it off just before the end costs a whole further session.
    """
    slack = 0
    for seat, record in zip(placement.seats, records, strict=True):
        if record.done_step + seat.steps >= record.spec.target_step:
            rate = rates.get(tx, seat.job, placement.pool)
            sigma = rate.sigma if rate else PRIOR_SIGMA
            setup = rate.setup_seconds if rate else 0
            slack = max(slack, round(2 * sigma * (placement.end - now)) + setup)
    return slack


def launch_all(ports: Ports, reserved: Sequence[Run]) -> None:
    """Submit each run: commit Submitting, call the platform, record the answer. An unknown answer changes nothing."""
    ports.in_parallel(lambda run: _launch_one(ports, run), reserved)


def _launch_one(ports: Ports, reserved: Run) -> None:
    now = ports.clock.now()
    submitting = run_arrows.submit(reserved.state, now)
    with ports.write() as tx:
        runs.change_state(tx, reserved.key, reserved.state, submitting, "submit", now)
        names = [lane.job for lane in reserved.lanes]
        specs = {name: jobs.get(tx, name).spec for name in names}
        overheads = Overheads(rates.everything(tx))
        restore = {name: [record.manifest for record in checkpoints.newest(tx, name)] for name in names}
    run = replace(reserved, state=submitting)
    try:
        note_seats(ports.artifacts, run)
        request = _request(ports, run, specs, overheads, restore)
    except StoreError as error:
        # The platform has not been called yet, so this is as good as a refusal.
        ports.log.warning("launch.store", run=run.key, pool=run.pool, why=str(error))
        _end_rejected(ports, run, str(error), ports.clock.now() + _REFUSED_SECONDS)
        return
    try:
        answer = ports.platforms[run.pool].launch(request, ports.clock.now())
    except Refused as error:
        _refused(ports, run, error)
    except Misconfigured as error:
        ports.log.error("launch.misconfigured", run=run.key, pool=run.pool, why=str(error))
        _end_rejected(ports, run, str(error), ports.clock.now() + _MISCONFIGURED_SECONDS)
    except PlatformError as error:
        ports.log.warning("launch.unknown", run=run.key, pool=run.pool, why=str(error))
    else:
        _accepted(ports, run, answer)


def _request(
    ports: Ports,
    run: Run,
    specs: Mapping[str, JobSpec],
    overheads: Overheads,
    restore: Mapping[str, Sequence[Manifest]],
) -> LaunchRequest:
    """Describe the session to its platform; mappings are keyed by job. Raises StoreError."""
    pool = ports.pools[run.pool]
    data = {name: ports.data_prefix(name) for name in specs}
    manifests = [manifest for found in restore.values() for manifest in found]
    wall_seconds = ports.clock.wall_seconds(run.held_until - ports.clock.now())
    document = launch_document(
        run=run,
        pool=pool,
        specs=specs,
        overheads={name: overheads.of(spec, pool) for name, spec in specs.items()},
        restore={name: [manifest.key for manifest in found] for name, found in restore.items()},
        data=data,
        store=ports.artifacts.payload_address(grant(run, manifests, data.values(), wall_seconds)),
        clock=ports.clock.payload_clock(),
        policy=ports.policy,
    )
    return LaunchRequest(
        key=run.key,
        pool=run.pool,
        devices=pool.devices_per_session,
        deadline=run.deadline,
        launch=document,
        bundle=ports.bundle,
        options=pool.options,
    )


def _accepted(ports: Ports, run: Run, answer: Observed) -> None:
    now = ports.clock.now()
    if answer.state in {SessionState.ENDED, SessionState.ABSENT}:
        return  # the next look settles it, with the lanes' results at hand
    running = run_arrows.accept(run.state, answer.remote_id, answer.started or run.planned_start)
    with ports.write() as tx:
        runs.change_state(tx, run.key, run.state, running, "accept", now)
        if ports.platforms[run.pool].capabilities.needs_person:
            events.append(tx, "session.offered", run.key, now, why=f"schedctl handover take {run.key}")
    ports.log.info(
        "run.started",
        run=run.key,
        pool=run.pool,
        jobs=[lane.job for lane in run.lanes],
        session_seconds=run.deadline - run.planned_start,
    )


def _refused(ports: Ports, run: Run, error: Refused) -> None:
    now = ports.clock.now()
    ports.log.warning("launch.refused", run=run.key, pool=run.pool, why=str(error), permanent=error.permanent)
    if error.permanent:
        with ports.write() as tx:
            reject(ports, tx, run, str(error), now, park=True)
        return
    _end_rejected(ports, run, str(error), error.wait_until or now + _REFUSED_SECONDS)


def _end_rejected(ports: Ports, run: Run, why: str, closed_until: int) -> None:
    now = ports.clock.now()
    with ports.write() as tx:
        reject(ports, tx, run, why, now)
        limits.close_pool(tx, run.pool, closed_until, why, now)
