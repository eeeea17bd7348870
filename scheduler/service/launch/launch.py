"""Launch: reserve quota and devices for planned sessions, then ask their platforms to start them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sqlalchemy import Connection

from config.errors import ConfigError
from jobs.nouns.pool import Pool
from jobs.payload.store.manifest import Manifest, blob_key
from jobs.payload.store.tree import code_prefix
from platforms.artifacts.base import Grant, StoreError
from platforms.base import LaunchRequest, Misconfigured, Observed, PlatformError, Refused, SessionState
from platforms.image import options_for
from scheduler.clock import at_least
from scheduler.core import job as job_arrows
from scheduler.core import run as run_arrows
from scheduler.core.admission import room
from scheduler.core.job import Queued
from scheduler.core.ledger import Charge
from scheduler.core.plan import Placement, Plan
from scheduler.core.reasons import Cause, ParentUnusable, Precondition
from scheduler.core.run import Lane, Reserved, Run, launch_key
from scheduler.core.throughput import PRIOR_SIGMA
from scheduler.service.facts import halvings
from scheduler.service.facts.apply import reject
from scheduler.service.facts.overheads import Overheads, patience, quiet_seconds
from scheduler.service.facts.snapshot import choose_parent, gives_secrets, pinned_parent
from scheduler.service.faults.isolation import BY, LeftOut, isolated, wait_for_person, why
from scheduler.service.faults.places import QUOTA_DENIED, LaunchNews, Obstacle, let_in, refused_by, rest
from scheduler.service.launch.inputs import trees_of, with_data, with_inputs
from scheduler.service.launch.launch_document import (
    launch_document,
    package_trees,
    stop_flag_key,
    store_lanes,
    with_packages,
)
from scheduler.service.outside import border
from scheduler.service.outside.ports import Ports
from scheduler.service.quota.audit import launchable
from scheduler.store import checkpoints, events, generations, jobs, ledger, limits, prices, rates, runs, trees, watched
from scheduler.store.errors import Stale, StoreFailure
from scheduler.store.jobs import JobRecord

_FULL_TIME = 0.98  # part of the planned time that a single-session job must get
# How long a session without work waits for an order. If there is no next job, the daemon ends the wait at once.
_ORDER_SECONDS, _ORDER_WALL_SECONDS = 180, 3.0
_REFUSED_SECONDS = 600  # how long a pool is closed after a refusal without a time
_CHECKS: tuple[tuple[Precondition, Callable[[Ports, Sequence[Placement]], list[Placement]]], ...] = (
    (Precondition.DATA, with_data),
    (Precondition.INPUTS, with_inputs),
    (Precondition.PACKAGES, with_packages),
    (Precondition.QUOTA_READING, launchable),
)
# Rights last longer than the session's hold, because clocks differ and a last report may be repeated.
_SLACK_SECONDS = 900
_GAP_SECONDS = 900  # longest gap between two planned sessions that may become one


def reserve(
    ports: Ports, plan: Plan, now: int, unopened: Collection[str] = (), obstacles: list[Obstacle] | None = None
) -> list[Run]:
    """Reserve the placements that the plan starts now, and return their runs. Admission is checked again in the ledger.

    A placement is skipped if it does not fit any more, if its job is not queued any more, if the platform of its pool
    is ``unopened`` (not created yet), or if its data or the pool's usage records are missing. The reasons are added to
    ``obstacles``. All runs are reserved in one transaction; if that fails, each in its own.
    """
    obstacles = [] if obstacles is None else obstacles
    prepared, lacking = prepare(ports, plan.due_now, unopened)
    obstacles += lacking
    if not prepared:
        return []
    try:
        with ports.write() as tx:
            waiting = list(prepared)
            reserved = []
            for placement in prepared:
                waiting.remove(placement)
                others = [other for other in waiting if other.pool == placement.pool]
                outcome = _reserve_one(ports, tx, placement, others, now, plan)
                if isinstance(outcome, Run):
                    reserved.append(outcome)
                else:
                    obstacles += outcome
            return reserved
    except (StoreFailure, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - trying each run separately shows which one is at fault
        ports.log.warning("reserve.divided", why=why(error))
    return [run for placement in prepared if (run := _reserve_alone(ports, placement, now, obstacles)) is not None]


def _reserve_alone(ports: Ports, placement: Placement, now: int, obstacles: list[Obstacle]) -> Run | None:
    """Reserve one placement and return its run, else None. After an unexpected error its jobs wait for a person."""
    faults: dict[str, str] = {}
    reserved: Run | None = None
    with isolated(faults, placement.pool), ports.write() as tx:
        outcome = _reserve_one(ports, tx, placement, (), now)
        if isinstance(outcome, Run):
            reserved = outcome
        else:
            obstacles += outcome
    if placement.pool in faults:
        reason = f"no session can be reserved for it: {faults[placement.pool]}"
        wait_for_person(ports, LeftOut({lane.job: reason for lane in placement.lanes}), now)
        return None
    return reserved


def _reserve_one(
    ports: Ports, tx: Connection, placement: Placement, others: Sequence[Placement], now: int, plan: Plan | None = None
) -> Run | list[Obstacle]:
    """Reserve one placement and return its run, or else the obstacles; the list is empty if the facts have changed.

    The run gets spare time only if the ``others`` on its pool still fit. The next plan considers changed facts.
    """

    def obstacles(precondition: Precondition) -> list[Obstacle]:
        return [Obstacle(lane.job, placement.pool, precondition) for lane in placement.lanes]

    pool = prices.priced(tx, {placement.pool: ports.pools[placement.pool]})[placement.pool]
    until, _ = limits.closures(tx).get(pool.name, (now, ""))
    if until is None or until > now or limits.paused(tx):
        return []  # it was closed after the plan was made
    if 2 * (placement.end - now) < placement.end - placement.start:
        return obstacles(Precondition.TIME)
    placement = of_one_image(tx, placement, pool)
    budgeted = halvings.within_budgets(tx, placement, pool, now)
    if budgeted is None:
        return obstacles(Precondition.BUDGET)
    placement, latest = budgeted
    booked = ledger.charges(tx, now - ledger.LOOK_BACK_SECONDS).get(pool.name, ())
    charges = (*booked, *watched.possible_charges(tx).get(pool.name, ()))
    ours = [run for run in runs.live(tx) if run.pool == pool.name]
    live_ends = [run.held_until for run in ours for _ in range(pool.places_of(run.devices))]
    observed = limits.observed(tx).get(pool.name, ())
    planned = [Charge(now, other.end + pool.overrun_seconds, held=True, devices=other.devices or 1) for other in others]
    wanted = placement.end + pool.overrun_seconds - now
    admitted = room(pool, charges, live_ends, now, observed, placement.devices)
    if admitted.seconds < wanted:
        facts = {"admitted_seconds": admitted.seconds, "limited_by": admitted.limited_by}
        ports.log.warning("reserve.refused", pool=pool.name, wanted_seconds=wanted, **facts)
        return obstacles(Precondition.ROOM)
    if {lane.job for lane in placement.lanes} & set(ports.calls.under_way("components")):
        # Components are being deleted that a new session of the job might name in its checkpoints.
        return obstacles(Precondition.CLEANING)
    records = [jobs.get(tx, lane.job) for lane in placement.lanes]
    if not all(isinstance(record.state, Queued) for record in records):
        return []
    able, copies = ports.platforms[pool.name].capabilities, trees.copies(tx)
    trees_by_job = [trees_of(record.spec, copies, able) for record in records]
    lacking = [
        Obstacle(record.spec.name, pool.name, Precondition.INPUTS if folders is None else Precondition.PARENT)
        for record, folders in zip(records, trees_by_job, strict=True)
        if folders is None or not pin_parent(ports, tx, record, now)
    ]
    if lacking:
        return lacking
    spare = room(pool, (*charges, *planned), live_ends, now, observed, placement.devices).seconds - wanted
    # With a budget, no time is added for following jobs, because it would be held for this job.
    slack = _slack(tx, placement, records, now, plan if able.takes_orders and latest == halvings.NEVER else None)
    deadline = min(latest, placement.end + max(0, min(spare, slack)))
    if any(record.spec.whole for record in records) and deadline - now < _FULL_TIME * (placement.end - placement.start):
        return obstacles(Precondition.TIME)  # a single-session job would be cut off
    lanes: list[Lane] = []
    device = 0
    for index, (lane, record) in enumerate(zip(placement.lanes, records, strict=True)):
        devices = tuple(range(device, device + lane.devices))
        lanes.append(new_lane(tx, record, pool, index, devices, trees_by_job[index] or {}))
        device += lane.devices
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
    ledger.hold(tx, run, now, pool.price_microdollars_per_hour, "planned session")
    for record in records:
        active = job_arrows.activate(record.state, key, now)
        jobs.change_state(tx, record.spec.name, record.state, active, "activate", now, run=key)
    return run


def new_lane(
    tx: Connection, record: JobRecord, pool: Pool, index: int, devices: tuple[int, ...], inputs: Mapping[str, str]
) -> Lane:
    """Return a lane for the next attempt of a job, and count the attempt; ``inputs`` are its folders in the store."""
    return Lane(
        index=index,
        job=record.spec.name,
        attempt=jobs.note_launch(tx, record.spec.name, pool.name),
        devices=devices,
        restore_step=record.done_step if record.checkpoint else None,
        code=record.spec.code.digest if record.spec.code else None,
        trees={**inputs, **package_trees(record.spec, pool)},
    )


def _slack(
    tx: Connection, placement: Placement, records: Sequence[JobRecord], now: int, plan: Plan | None = None
) -> int:
    """Return the seconds that a session which should finish its jobs may last beyond its planned end.

    With a ``plan`` it may last at least until the end of the planned sessions that may continue in it.

    A session whose jobs reach their targets ends by itself and releases the remaining time. So it costs little to allow
    for a speed below the estimate, while a session that is cut off just before its target costs another session.
    """
    slack = 0
    for lane, record in zip(placement.lanes, records, strict=True):
        if record.done_step + lane.steps >= record.spec.target_step:
            rate = rates.get(tx, lane.job, placement.pool)
            sigma = rate.sigma if rate else PRIOR_SIGMA
            setup = rate.setup_seconds if rate else 0
            slack = max(slack, round(2 * sigma * (placement.end - now)) + setup)
    return max(slack, _following(plan, placement)) if slack and plan else slack


def _following(plan: Plan, placement: Placement) -> int:
    """Return the seconds until the end of the sessions that are planned right after this one on its pool.

    If sessions take orders, the jobs of those sessions continue in this one; unused time is released.
    """
    end = placement.end
    for other in sorted(plan.placements, key=lambda one: one.start):
        fits = other.pool == placement.pool and other.devices <= placement.devices
        if fits and placement.end <= other.start <= end + _GAP_SECONDS:
            end = max(end, other.end)
    return end - placement.end


def launch_all(ports: Ports, reserved: Sequence[Run], news: LaunchNews) -> None:
    """Launch each run: commit the state Submitting, call the platform, record its answer. No answer changes nothing.

    The results are added to ``news``, for slow platforms after this function has returned.
    """
    submitted: list[tuple[Run, LaunchOrder]] = []
    faults: dict[str, str] = {}
    for run in reserved:
        with isolated(faults, run.key):
            submitted.append(_submit(ports, run))
        if run.key in faults:  # an error of ours: nothing was sent to a platform
            _cannot_be_launched(ports, run, faults[run.key])
    ports.calls.gather("launch", {run.key: partial(_launch_one, ports, run, order, news) for run, order in submitted})


def _cannot_be_launched(ports: Ports, run: Run, reason: str) -> None:
    """End a run that was not sent to its platform; its jobs wait for a person."""
    ports.log.error("launch.failed", run=run.key, pool=run.pool, why=reason)
    with ports.write() as tx:
        reject(ports, tx, run, f"it cannot be launched: {reason}", ports.clock.now(), park=BY)


def _submit(ports: Ports, reserved: Run) -> "tuple[Run, LaunchOrder]":
    now = ports.clock.now()
    submitting = run_arrows.submit(reserved.state, now)
    with ports.write() as tx:
        order = order_of(tx, [lane.job for lane in reserved.lanes])
        restore_keys = {name: [manifest.key for manifest in manifests] for name, manifests in order.restore.items()}
        begins = {name: manifest.key for name, manifest in order.parents.items()}
        code = {lane.job: lane.code for lane in reserved.lanes if lane.code}
        trees_by_job = {lane.job: dict(lane.trees) for lane in reserved.lanes if lane.trees}
        runs.change_state(
            tx, reserved.key, reserved.state, submitting, "submit", now,
            restore=restore_keys, parents=begins, code=code, trees=trees_by_job,
            secrets=order.secrets, free=free_devices(ports, reserved),
        )  # fmt: skip
    return replace(reserved, state=submitting), order


def _launch_one(ports: Ports, run: Run, order: "LaunchOrder", news: LaunchNews) -> None:
    """Launch a submitted run. This may take long, and a cycle may end the run in the meantime."""
    faults: dict[str, str] = {}
    try:
        with isolated(faults, run.key):
            _call_platform(ports, run, order, news)
    except Stale as error:
        ports.log.info("launch.overtaken", run=run.key, pool=run.pool, why=str(error))
    if faults:  # the session may have started: the next cycle queries its run ID
        ports.log.error("launch.failed", run=run.key, pool=run.pool, why=faults[run.key])


def _call_platform(ports: Ports, run: Run, order: "LaunchOrder", news: LaunchNews) -> None:
    not_requested = [Obstacle(lane.job, run.pool, Precondition.REQUEST) for lane in run.lanes]
    try:
        store_lanes(ports.artifacts, run)
        request = launch_request(ports, run, order)
    except StoreError as error:
        # The platform has not been called yet, so the run ends like a refused one.
        ports.log.warning("launch.store", run=run.key, pool=run.pool, why=str(error))
        news.obstacles += not_requested
        _end_rejected(ports, run, str(error), ports.clock.now() + _REFUSED_SECONDS)
        return
    except ConfigError as error:  # a secret is missing since the plan was made; the next plan reports it
        ports.log.warning("launch.secret", run=run.key, pool=run.pool, why=str(error))
        news.obstacles += not_requested
        _end_rejected(ports, run, str(error), None)
        return
    except (StoreFailure, OSError):
        raise
    except Exception as error:  # noqa: BLE001 - nothing was sent, and another attempt would fail, too
        _cannot_be_launched(ports, run, why(error))
        return
    try:
        answer = border.launch(ports, run, request)
    except Refused as error:
        _refused(ports, run, error)
    except Misconfigured as error:
        ports.log.error("launch.misconfigured", run=run.key, pool=run.pool, why=str(error))
        now = ports.clock.now()
        with ports.write() as tx:
            reject(ports, tx, run, str(error), now)
            refused_by(tx, run.pool, error, now)
    except PlatformError as error:
        ports.log.warning("launch.unknown", run=run.key, pool=run.pool, why=str(error))
    else:
        news.accepted += [lane.job for lane in run.lanes]
        _accepted(ports, run, answer)


def _accepted(ports: Ports, run: Run, answer: Observed) -> None:
    now = ports.clock.now()
    if answer.state in {SessionState.ENDED, SessionState.ABSENT}:
        return  # the next cycle ends the run, with the results of its lanes
    running = run_arrows.accept(run.state, answer.remote_id, answer.started or run.planned_start)
    with ports.write() as tx:
        runs.change_state(tx, run.key, run.state, running, "accept", now)
        let_in(tx, run.pool, now)
        if ports.platforms[run.pool].capabilities.needs_person:
            events.append(tx, "session.offered", run.key, now, why=f"schedctl handover claim {run.key}")
    names, seconds = [lane.job for lane in run.lanes], run.deadline - run.planned_start
    ports.log.info("run.started", run=run.key, pool=run.pool, jobs=names, session_seconds=seconds)


def _refused(ports: Ports, run: Run, error: Refused) -> None:
    now = ports.clock.now()
    ports.log.warning("launch.refused", run=run.key, pool=run.pool, why=str(error), permanent=error.permanent)
    until = border.until(error.wait_until, now)
    if error.permanent:
        with ports.write() as tx:
            reject(ports, tx, run, str(error), now, park="the platform")
    elif now >= run.deadline:  # the pool is not to blame: earlier calls took all of the session's time
        _end_rejected(ports, run, str(error), None)
    elif error.used_up:
        _quota_denied(ports, run, error, until)
    else:
        _end_rejected(ports, run, str(error), until or now + _REFUSED_SECONDS)


def _quota_denied(ports: Ports, run: Run, error: Refused, until: int | None) -> None:
    """Close the pool until the end of the quota's window if the usage records agree, else for a short time.

    A single such answer may be a mistake of the platform, which must not cost days of quota.
    """
    pool, reports_quota = ports.pools[run.pool], ports.platforms[run.pool].capabilities.reports_quota
    ends: int | None = None
    if reports_quota:
        try:
            readings, _ = border.usage_records(ports, pool.name)
        except PlatformError as failure:
            ports.log.warning("quota.unreadable", pool=pool.name, why=str(failure))
            readings = []
        for reading in readings:
            if reading.left_seconds < pool.session_seconds_min:
                ends = max(ends or 0, reading.end)
    now = ports.clock.now()
    with ports.write() as tx:
        reject(ports, tx, run, str(error), now)
        if not reports_quota:
            charges = ledger.charges(tx, now - ledger.LOOK_BACK_SECONDS).get(pool.name, ())
            if room(pool, charges, (), now, limits.observed(tx).get(pool.name, ())).seconds < pool.session_seconds_min:
                ends = until
        if ends is not None:
            limits.close_pool(tx, pool.name, ends, str(error), now, cause=Cause.QUOTA_DENIED)
        else:
            rest(tx, pool.name, QUOTA_DENIED, f"{error}; our ledger has hours left", now, until)


def _end_rejected(ports: Ports, run: Run, why: str, closed_until: int | None) -> None:
    now = ports.clock.now()
    with ports.write() as tx:
        reject(ports, tx, run, why, now)
        if closed_until is not None:
            limits.close_pool(tx, run.pool, closed_until, why, now, cause=Cause.REFUSED)


# Preparation: everything that a session needs is made available before quota is reserved for it.
def prepare(
    ports: Ports, due: Sequence[Placement], unopened: Collection[str], *, quota: bool = True
) -> tuple[list[Placement], list[Obstacle]]:
    """Return the placements whose jobs have everything that they need, and the obstacles of the other jobs.

    Missing data are fetched or built in the background. The platforms of ``unopened`` pools are not created yet. With
    ``quota`` the pool's usage records must have been read.
    """
    each = {id(placement): [replace(placement, lanes=(lane,)) for lane in placement.lanes] for placement in due}
    lanes = [lane for alone in each.values() for lane in alone]
    obstacles = [Obstacle(one.lanes[0].job, one.pool, Precondition.PLATFORM) for one in lanes if one.pool in unopened]
    lanes = [lane for lane in lanes if lane.pool not in unopened]
    for precondition, check in _CHECKS:
        if precondition is Precondition.QUOTA_READING and not quota:
            continue
        kept = {id(lane) for lane in check(ports, lanes)} if lanes else set()
        obstacles += [Obstacle(one.lanes[0].job, one.pool, precondition) for one in lanes if id(one) not in kept]
        lanes = [lane for lane in lanes if id(lane) in kept]
    ready = {id(lane) for lane in lanes}
    return [placement for placement in due if all(id(lane) in ready for lane in each[id(placement)])], obstacles


def of_one_image(tx: Connection, placement: Placement, pool: Pool) -> Placement:
    """Return a placement without the lanes whose image differs from the first one's: a session has one image."""
    specs = [jobs.get(tx, lane.job).spec for lane in placement.lanes]
    images = [options_for(spec, pool.platform, pool.options).get("image") for spec in specs]
    lanes = tuple(lane for lane, image in zip(placement.lanes, images, strict=True) if image == images[0])
    return replace(placement, lanes=lanes)


# The checkpoint that a job is initialised from: chosen at its first launch, kept until it has its own checkpoint.
def pin_parent(ports: Ports, tx: Connection, record: JobRecord, now: int) -> bool:
    """Choose the parent's checkpoint that a job is initialised from, if any; return whether the job can be launched.

    An earlier choice is kept unless that checkpoint is damaged. A job whose checkpoint is being verified must wait.
    """
    start = record.spec.start_from
    if start is None or record.checkpoint is not None:
        return True
    chosen = choose_parent(tx, record, start)
    name = record.spec.name
    if isinstance(chosen, ParentUnusable):
        ports.log.warning("reserve.parentless", job=name, why=chosen.sentence())
        return False
    if chosen == pinned_parent(tx, record):
        return True
    generation = generations.current(tx, name) or generations.begin(tx, name, record.attempts + 1, now)
    generations.pin(tx, generation, start.parent, chosen.step, chosen.key, now, "daemon")
    return True


# The data of a launch for its platform and session, from the jobs at the time of submission.
#
# It includes the session's rights in the artifact store: to write its own objects, to read its inputs.
@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """The data of a launch about its jobs, by name, at the time of submission."""

    records: Mapping[str, JobRecord]
    overheads: Overheads
    quiet: Mapping[str, float]
    restore: Mapping[str, Sequence[Manifest]]
    parents: Mapping[str, Manifest]  # the checkpoint that a job without its own is initialised from

    @property
    def secrets(self) -> list[str]:
        """The names of all secrets that the jobs need."""
        return sorted({name for record in self.records.values() for name in record.spec.secrets})


def order_of(tx: Connection, names: Sequence[str]) -> LaunchOrder:
    """Return the current data of these jobs for a launch."""
    records = {name: jobs.get(tx, name) for name in names}
    fresh = {name: record for name, record in records.items() if record.checkpoint is None}
    parents = {name: parent for name, record in fresh.items() if (parent := pinned_parent(tx, record)) is not None}
    return LaunchOrder(
        records=records,
        overheads=Overheads(rates.everything(tx)),
        quiet={name: quiet_seconds(runs.reports_of_good_sessions(tx, name)) for name in names},
        restore={name: [record.manifest for record in checkpoints.newest(tx, name)] for name in names},
        parents=parents,
    )


def launch_request(ports: Ports, run: Run, order: LaunchOrder) -> LaunchRequest:
    """Return the request for a session to its platform. Raises StoreError, and ConfigError for a missing secret."""
    pool, restore = ports.pools[run.pool], order.restore
    specs = {name: record.spec for name, record in order.records.items()}
    estimates = {name: order.overheads.of(spec, pool) for name, spec in specs.items()}
    clock = ports.clock.payload_clock()
    data = {name: ports.data_prefix(name) for name in specs}
    folders = [*data.values(), *(code_prefix(lane.code) for lane in run.lanes if lane.code)]
    folders += [prefix for lane in run.lanes for prefix in lane.trees.values()]
    manifests = [*(manifest for candidates in restore.values() for manifest in candidates), *order.parents.values()]
    wall_seconds = ports.clock.wall_seconds(run.held_until - ports.clock.now())
    chain = {
        "wait_seconds": at_least(ports.clock, _ORDER_SECONDS, _ORDER_WALL_SECONDS),
        "least_seconds": pool.setup_seconds + pool.session_seconds_min,
        "free": [[lane, [device]] for lane, device in free_devices(ports, run)],
    }
    document = launch_document(
        run=run,
        pool=pool,
        specs=specs,
        overheads=estimates,
        stalls={
            name: patience(
                record.spec,
                pool,
                estimates[name],
                order.overheads.measured,
                done_step=record.done_step,
                quiet_seconds=order.quiet[name],
                scale=clock["scale"],
            )
            for name, record in order.records.items()
        },
        restore={name: [manifest.key for manifest in candidates] for name, candidates in restore.items()},
        parents={name: manifest.key for name, manifest in order.parents.items()},
        data=data,
        store=ports.artifacts.payload_address(
            grant(run, manifests, folders, wall_seconds, [lane for lane, _ in free_devices(ports, run)])
        ),
        clock=clock,
        policy=ports.policy,
        chain=chain if ports.platforms[run.pool].capabilities.takes_orders else None,
    )
    return LaunchRequest(
        key=run.key,
        pool=run.pool,
        devices=pool.held_devices(run.devices),
        deadline=run.deadline,
        launch=document,
        bundle=ports.bundle,
        options=pool.options,
        secrets={name: ports.read_secret(name) for name in order.secrets}
        if order.secrets and gives_secrets(pool)
        else {},
    )


def free_devices(ports: Ports, run: Run) -> list[tuple[int, int]]:
    """Return (lane number, device) for each unused device of a new session, on which a job may follow later."""
    if not ports.platforms[run.pool].capabilities.takes_orders or any(lane.begun_at is not None for lane in run.lanes):
        return []
    devices = range(run.devices, ports.pools[run.pool].held_devices(run.devices))
    return [(len(run.lanes) + number, device) for number, device in enumerate(devices)]


def grant(
    run: Run, restore: Iterable[Manifest], data: Iterable[str], wall_seconds: float, free: Iterable[int] = ()
) -> Grant:
    """Return a run's rights in the artifact store; ``wall_seconds`` is the real time until the run must have ended.

    ``free`` are the numbers of lanes that have no job yet.
    ``restore`` are the checkpoints it may start from, ``data`` the store prefixes of its training data, code and trees.
    """
    reads = {stop_flag_key(run.key)}
    for lane in run.lanes:
        reads |= {f"runs/{run.key}/lane-{lane.index}/{name}.json" for name in ("heartbeat", "result", "next")}
    reads |= {f"runs/{run.key}/lane-{lane}/next.json" for lane in free}
    for manifest in restore:
        reads.add(manifest.key)
        reads |= {blob_key(manifest.job, component.sha256) for component in manifest.components}
    return Grant(
        run=run.key,
        jobs=tuple(sorted({lane.job for lane in run.lanes})),
        reads=tuple(sorted(reads)),
        folders=tuple(sorted({prefix.rstrip("/") for prefix in data} - {""})),
        lasts_seconds=max(0, round(wall_seconds)) + _SLACK_SECONDS,
    )
