"""Apply: write observations and steps to the database, in one transaction guarded by old state and epoch."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import assert_never, cast

from sqlalchemy import Connection

from jobs.lane_report import LaneReport
from jobs.nouns.pool import Pool
from jobs.nouns.window import DAY, HOUR
from jobs.payload.store.manifest import Manifest, split_key
from platforms.base import Extends, PlatformError
from scheduler.core import job as arrows
from scheduler.core import run as run_arrows
from scheduler.core.admission import room
from scheduler.core.blame import STALLED_CLASSES, hold_reason, last_line, retry_delay
from scheduler.core.job import Active, Queued
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.reconcile import Accept, AskStop, Begin, CloseLane, Finish, ForceStop, LaneEnd, Postpone, Step
from scheduler.core.run import CONSEQUENCES, PARENT, WRONG_DEVICE, Lane, Outcome, Run, Running, Stopping
from scheduler.core.throughput import PRIOR_SIGMA, Sample, learn, one_device_speed
from scheduler.service.facts import early_stops, halvings
from scheduler.service.facts.observation import Observation
from scheduler.service.facts.overheads import Overheads
from scheduler.service.faults.places import NEVER_BEGAN, rest
from scheduler.service.faults.places import WRONG_DEVICE as POOL_WRONG_DEVICE
from scheduler.service.outside import border
from scheduler.service.outside.ports import Ports
from scheduler.store import checkpoints, events, generations, jobs, ledger, limits, prices, rates, runs, series, watched
from scheduler.store.jobs import JobRecord
from scheduler.store.rates import RateRecord
from scheduler.store.training_data import record as record_training_data

WATCHED_SECONDS = DAY  # how long a run that ended without proof is watched after the end of its hold
LINGERS_SECONDS = HOUR  # how long a session without a final report is watched after its last sign of life
_WARM_SECONDS = 60
_CRASH_SECONDS = 60  # a command that fails within this time will probably fail again
_SURPRISE = 0.1  # relative difference at which a speed is stored again while the session runs


def apply(
    ports: Ports, tx: Connection, live: Sequence[Run], observation: Observation, steps: Sequence[Step], now: int
) -> None:
    """Record checkpoints, heartbeats and the speeds learned from them, then apply ``steps`` to the database.

    Checkpoints come first, because they decide whether a lane finished its job; its report does not.
    """
    reports = observation.heartbeats | observation.results
    for (key, index), report in reports.items():
        runs.note_heartbeat(tx, key, index, report.document())
        if report.bad_manifests:
            _quarantine_reported(ports, tx, report, now)
    for key, why in observation.bad:
        quarantine(ports, tx, key, why, now)
    for manifest in sorted(observation.manifests, key=lambda saved: saved.key):
        _record_checkpoint(ports, tx, manifest, now)
    for run in live:
        for lane in run.lanes:
            heartbeat = reports.get((run.key, lane.index))
            if heartbeat is not None and heartbeat.restored_step not in {None, lane.restore_step}:
                runs.note_restored(tx, run.key, lane.index, heartbeat.restored_step)
            record = jobs.find(tx, lane.job) if heartbeat is not None else None
            if heartbeat is not None and record is not None:
                record_training_data(tx, lane.job, run.key, heartbeat.training_data, now)
                _record_metrics(tx, lane, heartbeat, record.spec.target_step, now)
                _learn(ports, tx, run, lane, record, heartbeat, now)
    for step in steps:
        _carry_out(ports, tx, step, now)


def _carry_out(ports: Ports, tx: Connection, step: Step, now: int) -> None:
    match step:
        case Accept(run=run, remote_id=remote_id, started=started):
            accepted = run_arrows.accept(run.state, remote_id, started)
            runs.change_state(tx, run.key, run.state, accepted, "accept", now, found_by_key=True)
        case Postpone():
            postpone(ports, tx, step, now)
        case Begin():
            _move(tx, step.run, step.started, step.deadline, now, started=step.started)
        case CloseLane(run=run, end=end):
            close_lane(ports, tx, run, end, now)
        case Finish():
            _finish(ports, tx, step, now)
        case AskStop(lane=int()):
            pass  # the job's own wish is recorded; the run continues for its other lane
        case AskStop(run=run, why=why) | ForceStop(run=run, why=why):
            if isinstance(run.state, Running):
                runs.change_state(tx, run.key, run.state, run_arrows.stop(run.state, why, now), "stop", now)
        case _:
            assert_never(step)


def _finish(ports: Ports, tx: Connection, step: Finish, now: int) -> None:
    run = step.run
    state = run.state
    if step.started is not None and not isinstance(state, Running | Stopping):
        # The whole session passed between its launch and the first observation.
        accepted = run_arrows.accept(state, run.key, step.started)
        runs.change_state(tx, run.key, state, accepted, "accept", now, found_by_key=True)
        state = accepted
    for lane_end in step.lanes:
        close_lane(ports, tx, run, lane_end, now)
    ended = run_arrows.end(state, step.outcome, step.ended, step.started)
    runs.change_state(tx, run.key, state, ended, f"end_{step.outcome}", now, why=step.why)
    pool = ports.pools.get(run.pool)
    price, evidence = prices.of(tx, pool) if pool else 0, step.why
    hour_price = step.price_microdollars_per_hour
    if hour_price is not None and pool is not None and not pool.price_microdollars_per_hour:
        price = hour_price
        evidence = f"{step.why}; ${hour_price / 1_000_000:.4f} an hour by {pool.platform}'s own estimate"
    booked = None if step.started is None else (step.started, step.ended)
    kind = EntryKind.SPEND if booked else EntryKind.RELEASE
    start, end = booked or (run.planned_start, run.held_until)
    entry = LedgerEntry(kind, run.pool, run.key, start, end, now, evidence=evidence)
    ledger.append(tx, [replace(entry, price_microdollars_per_hour=price)])
    if not step.proven:
        watched.add(tx, run.key, max(now, run.held_until) + WATCHED_SECONDS, booked)
    elif step.may_live:
        watched.add(tx, run.key, now + LINGERS_SECONDS, booked)


def close_lane(ports: Ports, tx: Connection, run: Run, end: LaneEnd, now: int) -> None:
    """Store how a lane ended, and the consequences for its job and its pool. Raises Stale."""
    lane = next(lane for lane in runs.get(tx, run.key).lanes if lane.index == end.index)
    runs.close_lane(tx, run.key, end.index, end.outcome, end.step, end.error_class, end.message, now)
    blamed = _blames_pool(ports, run, end)
    if blamed:
        why = f"wrong accelerator in {run.key}: {end.message}"[:500]
        until = rest(tx, run.pool, POOL_WRONG_DEVICE, why, now)
        ports.log.error(POOL_WRONG_DEVICE, pool=run.pool, run=run.key, why=end.message, tried_again_at=until)
    if end.place_failed:
        until = rest(tx, run.pool, NEVER_BEGAN, f"{run.key} {end.message}"[:500], now)
        ports.log.error(NEVER_BEGAN, pool=run.pool, run=run.key, why=end.message, tried_again_at=until)
    record = jobs.get(tx, end.job)
    state = record.state
    if not isinstance(state, Active) or state.run != run.key:
        return
    generation = generations.current(tx, end.job) if end.error_class == PARENT else None
    if generation is not None and record.checkpoint is None:
        generations.refuse(tx, generation, end.message, now)
    consequence = CONSEQUENCES[Outcome.REJECTED if blamed else end.outcome]
    progressed = record.done_step > (lane.restore_step or 0)
    failures = 0 if progressed or end.outcome is Outcome.FINISHED else record.failures
    if consequence.counts_as_failure:
        failures += 1
    if failures != record.failures:
        jobs.note_failures(tx, end.job, failures)
    if record.done_step >= record.spec.target_step:
        jobs.change_state(
            tx, end.job, state, arrows.finish(state, now, *halvings.pause(record.spec)), "finish", now, run=run.key
        )
    elif state.wish == "finish":
        early_stops.finish(ports, tx, record, state.why, now)
    elif why := _needs_person(ports, tx, record, run, end, failures, now):
        parked = arrows.park(state, "the scheduler", why[:500], now)
        jobs.change_state(tx, end.job, state, parked, "park", now, run=run.key)
    elif consequence.job == "retry" and failures >= ports.policy.failures_max:
        why = f"{failures} failed runs in a row, the last in {run.key}: {end.message}"
        failed = arrows.fail(state, end.error_class or end.outcome, why[:500], now)
        jobs.change_state(tx, end.job, state, failed, "fail", now, run=run.key)
    else:
        retry_at = None
        if consequence.job == "retry":
            _report_crashes(ports, tx, run, end, now)
            policy = ports.policy
            retry_at = now + retry_delay(end.job, failures, policy.retry_base_seconds, policy.retry_cap_seconds)
        requeued = arrows.requeue(state, now, retry_at)
        jobs.change_state(tx, end.job, state, requeued, "requeue", now, run=run.key, outcome=end.outcome)
    halvings.consider(ports, tx, record.spec.sweep, now)


def _report_crashes(ports: Ports, tx: Connection, run: Run, end: LaneEnd, now: int) -> None:
    """Write an event if the last two sessions of a job failed within a minute of their start, with any errors.

    The rule for repeated errors (``stall.same_error``) misses a crash whose text changes each time.
    """
    reports = runs.last_reports(tx, end.job, 2)
    if len(reports) == 2 and all(map(_is_crash, reports)):
        why = last_line(end.message)
        ports.log.warning("job.crashes", job=end.job, run=run.key, why=why)
        events.append(tx, "job.crashes", end.job, now, run=run.key, why=why)


def _is_crash(report: LaneReport) -> bool:
    began = report.command_at if report.command_at is not None else report.started_at
    if report.outcome != Outcome.FAILED or began is None or report.ended_at is None:
        return False
    return report.ended_at - began <= _CRASH_SECONDS


def _blames_pool(ports: Ports, run: Run, end: LaneEnd) -> bool:
    """Return whether the pool's accelerator differs from the expected one, which is not a fault of the job."""
    pool = ports.pools.get(run.pool)
    promised = pool is not None and bool(pool.options.get("expected_device"))
    return promised and end.outcome is Outcome.FAILED and end.error_class == WRONG_DEVICE


def _needs_person(
    ports: Ports, tx: Connection, record: JobRecord, run: Run, end: LaneEnd, failures: int, now: int
) -> str:
    """Return why the job must wait for a person; also write an event for each stalled session."""
    if end.error_class in STALLED_CLASSES and end.outcome is Outcome.FAILED:
        ports.log.warning("job.stalled", job=end.job, run=run.key, rule=end.error_class, why=end.message)
        events.append(tx, "job.stalled", end.job, now, run=run.key, rule=end.error_class, why=end.message[:500])
    attempt = next(lane.attempt for lane in run.lanes if lane.index == end.index)
    earlier = [lane for lane in runs.ended_lanes(tx, end.job) if lane.attempt < attempt]
    return hold_reason(end, failures, earlier, record.spec.stall.same_error)


def _record_checkpoint(ports: Ports, tx: Connection, manifest: Manifest, now: int) -> None:
    record = jobs.find(tx, manifest.job)
    if record is None:
        return
    if manifest.step <= record.done_step or manifest.attempt <= record.fenced_attempt or record.stopped_early:
        # It belongs to a removed job of this name, or to a job that was stopped at a better checkpoint, or it was read
        # after a newer one. Progress never decreases, but if the newer one is damaged, the job can resume from this
        # one.
        checkpoints.record(tx, manifest, now)
        return
    if checkpoints.record(tx, manifest, now):
        jobs.note_progress(tx, manifest.job, manifest.step, manifest.key)
        for waiting in jobs.everything(tx):  # an event for each job whose gate opens, so that a plan is made
            gate = waiting.spec.gate
            if gate is not None and gate.parent == manifest.job and isinstance(waiting.state, Queued):
                needed = gate.step_of(record.spec.target_step)
                if record.done_step < needed <= manifest.step:
                    events.append(tx, "gate.opened", waiting.spec.name, now, parent=gate.parent, step=manifest.step)
        early_stops.consider(ports, tx, manifest.job, now)
        # As one field: scripts choose these names, which must not become argument names.
        metrics = dict(manifest.metrics)
        ports.log.info("checkpoint.seen", job=manifest.job, step=manifest.step, run=manifest.run, metrics=metrics)


def _quarantine_reported(ports: Ports, tx: Connection, report: LaneReport, now: int) -> None:
    """Quarantine the checkpoints that a session reports as damaged, if it was launched to start from them."""
    restored = runs.restore_keys(tx, report.run, report.job)
    if restored is None:  # launched by an older version, or before a restored backup
        restored = [record.manifest.key for record in checkpoints.newest(tx, report.job)]
    for damaged in report.bad_manifests:
        if damaged.manifest in restored:
            quarantine(ports, tx, damaged.manifest, damaged.why, now)


def quarantine(ports: Ports, tx: Connection, key: str, why: str, now: int) -> None:
    """Withhold a checkpoint from all jobs, and set its own job back to the newest good one."""
    named = split_key(key)
    stored = checkpoints.find(tx, key) if named is not None else None
    if named is None or stored is None or stored.state != "good":
        return
    checkpoints.quarantine(tx, key, why, now)
    job = named[0]
    ports.log.warning("checkpoint.quarantined", job=job, manifest=key, why=why)
    record = jobs.find(tx, job)
    if record is not None and record.checkpoint == key:
        good = checkpoints.newest(tx, job, 1)
        step, newest = (good[0].manifest.step, good[0].manifest.key) if good else (0, None)
        jobs.note_progress(tx, job, step, newest, fork=True)


def _record_metrics(tx: Connection, lane: Lane, report: LaneReport, target_step: int, now: int) -> None:
    """Store the training metrics that a lane reported, for charts."""
    if report.step is not None:
        at = now if report.at is None else min(now, report.at)
        data = {name: getattr(report, name) for name in series.FIGURES}
        point = series.Point(lane.job, lane.attempt, report.step, at, **data)
        series.add(tx, point, target_step)


def _learn(ports: Ports, tx: Connection, run: Run, lane: Lane, record: JobRecord, report: LaneReport, now: int) -> None:
    """Learn from the final report of a lane, or from a heartbeat with a speed if nothing better is known.

    A speed from a heartbeat is replaced by the final report of the same session, or earlier if the session's speed
    changes.
    """
    pool = ports.pools.get(run.pool)
    if pool is None or lane.outcome is not None:
        return
    still_runs = report.outcome is None
    if still_runs and not (report.steps_per_second and _is_warm(report)):
        return
    rate = rates.get(tx, lane.job, run.pool)
    cut_off = report.outcome == Outcome.YIELDED or report.error_class == "no_checkpoint"
    if rate is not None and rate.samples and record.spec.whole and cut_off:
        # It needs longer than similar jobs: its next session gets the time of its definition.
        rates.put(tx, replace(rate, steps_per_second=0.0, sigma=PRIOR_SIGMA, samples=0, at=now))
        return
    is_provisional = rate is not None and rate.samples == 1 and rate.at > run.planned_start
    if still_runs and rate is not None and rate.samples:
        speed = _alone(report.steps_per_second or 0.0, run, lane, record, pool)
        if not is_provisional or abs(speed - rate.steps_per_second) <= _SURPRISE * rate.steps_per_second:
            return  # the usual case, which reads nothing else
    sample = _sample(ports, pool, run, lane, record, report, rate)
    if all(value is None for value in (sample.steps_per_second, sample.setup_seconds, sample.setup_at_least)):
        return
    before = Overheads(rates.everything(tx)).prior(record.spec, pool) if rate is None or is_provisional else rate
    learned = learn(before, sample)
    rates.put(tx, RateRecord(**{**asdict(learned), "job": lane.job, "pool": run.pool, "at": now}))
    if still_runs and learned.samples:
        # An event, so that a new plan is made at once: the present one is based on a guess.
        data = {"pool": run.pool, "steps_per_hour": round(3_600 * learned.steps_per_second, 1), "run": run.key}
        events.write(tx, "job.speed", lane.job, now, "daemon", data)


def _is_warm(report: LaneReport) -> bool:
    """Return whether a session has trained long enough to show its speed: the first steps compile and fill caches."""
    if report.checkpoint_seconds is not None:
        return True
    if report.at is None or report.started_at is None or report.setup_seconds is None:
        return False
    return report.at - report.started_at - report.setup_seconds >= _WARM_SECONDS


def _sample(
    ports: Ports, pool: Pool, run: Run, lane: Lane, record: JobRecord, report: LaneReport, before: RateRecord | None
) -> Sample:
    """Return the measurements in a lane's report; ``before`` is the stored rate of its job and pool."""
    speed, setup = report.steps_per_second, report.setup_seconds
    started, ended = report.started_at, report.ended_at
    platform = ports.platforms.get(run.pool)
    # The time until a person starts an offered session does not predict the next delay; a running session has no delay.
    waits_for_person = platform is not None and platform.capabilities.needs_person
    knows_no_delay = waits_for_person or lane.begun_at is not None
    return Sample(
        steps_per_second=_alone(speed, run, lane, record, pool) if speed else None,
        setup_seconds=setup,
        checkpoint_seconds=report.checkpoint_seconds,
        delay_seconds=None if started is None or knows_no_delay else float(max(0, started - run.planned_start)),
        setup_at_least=float(max(0, ended - started))
        if setup is None and started is not None and ended is not None and _was_cut_off(report, before)
        else None,
    )


def _was_cut_off(report: LaneReport, rate: RateRecord | None) -> bool:
    """Return whether a session without measurements was cut off in its set-up, which took at least that long.

    A command that failed or was stopped shows no set-up time. A command that was started and never reported
    may need more time; this counts only for a job that has never trained here, and not for others (overheads).
    """
    if report.command_at is not None and rate is not None and rate.samples:
        return False
    cut_off = report.outcome in {Outcome.YIELDED, Outcome.PREEMPTED} or report.error_class == "no_checkpoint"
    return cut_off and report.checkpoint_step == report.restored_step


def _alone(speed: float, run: Run, lane: Lane, record: JobRecord, pool: Pool) -> float:
    sharing = pool.sharing if len(run.lanes) > 1 else 1.0
    return one_device_speed(speed, len(lane.devices), record.spec.device_speedup, sharing)


def reject(ports: Ports, tx: Connection, run: Run, why: str, now: int, *, park: str = "") -> None:
    """End a run that was never started and release its hold. Its jobs are queued again, or held by ``park`` if set."""
    for lane in run.lanes:
        end = LaneEnd(lane.index, lane.job, Outcome.REJECTED, None, None, why)
        if park:
            record = jobs.get(tx, lane.job)
            if isinstance(record.state, Active) and record.state.run == run.key:
                parked = arrows.park(record.state, park, why[:500], now)
                jobs.change_state(tx, lane.job, record.state, parked, "park", now, run=run.key)
        close_lane(ports, tx, run, end, now)
    _finish(ports, tx, Finish(run, Outcome.REJECTED, None, now, (), why), now)


# A run's deadline and hold move if its session waits in a queue or starts late.
def postpone(ports: Ports, tx: Connection, step: Postpone, now: int) -> None:
    """Move the hold of a waiting run to its later start; stop the run if its pool has no room at that time."""
    run, pool = step.run, ports.pools.get(step.run.pool)
    if step.deadline == run.deadline:
        return
    starts = now, step.deadline - step.length_seconds
    why = "" if pool is None else _no_room(tx, run, pool, step.length_seconds, starts)
    if why and isinstance(run.state, Running):
        why = f"it waited in its platform's queue for all its hours, and {why} leaves no more: its job is queued again"
        runs.change_state(tx, run.key, run.state, run_arrows.stop(run.state, why, now), "stop", now)
        return
    _move(tx, run, now, halvings.latest_deadline(tx, run, step.deadline, now), now)


def extend(ports: Ports, steps: Sequence[Step], now: int) -> None:
    """Send platforms the new deadlines of waiting sessions, within the time that the ledger has reserved."""
    wanted = {step.run.key: step for step in steps if isinstance(step, Postpone)}
    if not wanted:
        return
    with ports.database.read() as tx:
        granted = [run for key in wanted if isinstance((run := runs.get(tx, key)).state, Running)]
    ports.calls.gather("extend", {run.key: partial(_extend, ports, run, now) for run in granted})


def _extend(ports: Ports, run: Run, now: int) -> None:
    platform = cast("Extends", ports.platforms[run.pool])
    try:
        border.call(run.pool, "extend", lambda: platform.extend(run.key, run.deadline, now))
    except PlatformError as error:  # it keeps its deadline, and is reported again
        ports.log.warning("extend.failed", run=run.key, why=str(error))


def _move(tx: Connection, run: Run, start: int, deadline: int, now: int, *, started: int | None = None) -> None:
    held_until = deadline + run.held_until - run.deadline
    state = run.state if started is None else run_arrows.begin(run.state, started)
    runs.move(tx, run, state, deadline, held_until, now)
    if held_until != run.held_until:
        price = next((entry.price_microdollars_per_hour for entry in ledger.of_runs(tx, [run.key])), 0)
        why = "it waits in its platform's queue" if started is None else "it began later than planned"
        ledger.hold(tx, replace(run, held_until=held_until), now, price, why, min(start, held_until))


def _no_room(tx: Connection, run: Run, pool: Pool, length_seconds: int, starts: tuple[int, ...]) -> str:
    """Return the limit that prevents a session from starting at one of these instants; "" if there is room."""
    pool = prices.priced(tx, {pool.name: pool})[pool.name]
    booked = ledger.charges(tx, starts[0] - ledger.LOOK_BACK_SECONDS).get(pool.name, ())
    possible = watched.possible_charges(tx).get(pool.name, ())
    charges = [charge for charge in (*booked, *possible) if charge.run != run.key]
    others = [other for other in runs.live(tx) if other.pool == pool.name and other.key != run.key]
    ends = [other.held_until for other in others for _ in range(pool.places_of(other.devices))]
    observed = limits.observed(tx).get(pool.name, ())
    for start in starts:
        admitted = room(pool, charges, ends, start, observed, run.devices)
        if admitted.seconds < length_seconds + run.held_until - run.deadline:
            return admitted.limited_by
    return ""
