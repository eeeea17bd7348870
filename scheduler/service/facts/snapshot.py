"""Snapshot: the frozen input of the planner, from one read transaction."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection

from config.errors import ConfigError
from jobs.duration import coming
from jobs.nouns.pool import Pool
from jobs.nouns.window import DAY
from jobs.payload.store.manifest import Manifest
from jobs.spec import EVALUATE, Gate, JobSpec, StartFrom
from platforms.image import has_lock, options_for
from platforms.registry import secret_way
from scheduler.core.blame import last_line
from scheduler.core.job import Active, Cancelled, Done, Failed, Held, Queued
from scheduler.core.quota import current_quotas
from scheduler.core.reasons import AwaitsVerdict, BadDefinition, HeldByPerson, ParentUnusable, Reason, SecretMissing
from scheduler.core.run import Ended, Run, Running, Stopping
from scheduler.core.snapshot import Arrivals, HourShare, JobView, LiveRun, PoolView, Rate, Snapshot
from scheduler.service.facts import halvings
from scheduler.service.facts.overheads import ELSEWHERE_SIGMA, Overheads, Priors, is_advised, misfit, seen_of_runs
from scheduler.service.faults.isolation import isolated
from scheduler.store import (
    checkpoints,
    conditions,
    generations,
    jobs,
    ledger,
    limits,
    prices,
    queue_waits,
    rates,
    runs,
    versions,
    watched,
)
from scheduler.store.jobs import JobRecord
from scheduler.store.rates import RateRecord

_TOLERANCE = 1e-9  # steps; the same as the planner's for gates
_EVALUATION_WEIGHT = 0.04  # part of its model's weight that an evaluation has while its deadline is far


def load_snapshot(tx: Connection, pools: Mapping[str, Pool], now: int, horizon_seconds: int) -> Snapshot:
    """Return the planner's input, from the database alone."""
    # Imported here: a daemon that starts adopts sessions first, and needs no planner for that.
    from scheduler.planner.model.urgency import with_urgency

    return with_urgency(gather(tx, pools, now, horizon_seconds, {}))


def gather(
    tx: Connection,
    pools: Mapping[str, Pool],
    now: int,
    horizon_seconds: int,
    faults: dict[str, str],
    read_secret: Callable[[str], object] = str,
) -> Snapshot:
    """Return the planner's input without urgencies. Jobs that cause an error are left out; ``faults`` gets it by job.

    ``read_secret`` raises ConfigError for a secret that the daemon does not have. By default all secrets count as
    present.
    """
    pools = prices.priced(tx, pools)
    records = jobs.everything(tx)
    gated = {record.spec.name for record in records if record.spec.gates}
    live = runs.live(tx)
    overheads = Overheads(rates.everything(tx), queues(tx, live))
    priors = Priors(seen_of_runs((record.spec for record in records), overheads.measured, pools))
    charges = ledger.charges(tx, now - ledger.LOOK_BACK_SECONDS)
    possible = watched.possible_charges(tx)
    observed = limits.observed(tx)
    closures, paused = limits.closures(tx), limits.paused(tx)
    if paused is not None:
        closures = dict.fromkeys(pools, (None, paused.why))
    # A closure without an end is checked again in a day.
    ends = {name: now + DAY if until is None else until for name, (until, _) in closures.items()}
    closed_until = {name: until for name, until in ends.items() if until > now}
    planned_lanes = {lane.job: run.key for run in live for lane in run.lanes if lane.outcome is None}
    budgets = halvings.budgets(tx) if any(map(halvings.has_budget, records)) else {}
    views = []
    finished: dict[str, float] = {}
    for record in records:
        match record.state:
            case Queued() | Active() | Held():
                name = record.spec.name
                with isolated(faults, name):
                    view = job_view(record, pools, overheads, planned_lanes.get(name), read_secret, priors)
                    waits = view.blocked or _awaits_verdict(tx, record, gated) or lacks_parent(tx, record)
                    if view.retry_at is not None and (ended := runs.ended_lanes(tx, name, 1)):
                        view = replace(view, last_error=last_line(ended[0].message))
                    views.append(halvings.within_budget(replace(view, blocked=waits), record, budgets, pools))
                if name in faults:
                    finished[name] = record.done_step / max(1, record.spec.target_step)
            case Done():
                finished[record.spec.name] = 1.0
            case Failed() | Cancelled():
                finished[record.spec.name] = record.done_step / max(1, record.spec.target_step)
    targets = {record.spec.name: record.spec.target_step for record in records}
    views = [by_fraction(view, targets) for view in views]
    if any(record.spec.share is not None for record in records):
        shares = hour_shares(tx, records)
        views = [replace(view, share=shares.get(view.name)) for view in views]

    def as_new(record: JobRecord) -> JobView:
        return by_fraction(job_view(replace(record, done_step=0), pools, overheads, None, read_secret, priors), targets)

    lives: dict[str, list[LiveRun]] = {name: [] for name in pools}
    blind: dict[str, str] = {}  # pools that are left out because a session there causes an error
    for run in live:
        if run.pool in lives:
            with isolated(blind, run.pool):
                lives[run.pool].append(_live_run(run))
    return Snapshot(
        now=now,
        jobs=tuple(_lower_evaluations(views, records, now)),
        pools=tuple(
            PoolView(
                pool=replace(pool, quotas=current_quotas(pool, observed.get(name, ()))),
                charges=(*charges.get(name, ()), *possible.get(name, ())),
                live=tuple(lives[name]),
                observed=observed.get(name, ()),
                closed_until=closed_until.get(name),
                closed_why=closures[name][1] if name in closures else "",
            )
            for name, pool in sorted(pools.items())
            if name not in blind
        ),
        horizon_seconds=horizon_seconds,
        finished=finished,
        arrivals=arrivals(tx, records, as_new, now, now + horizon_seconds),
    )


def by_fraction(view: JobView, targets: Mapping[str, int]) -> JobView:
    """Return the view with a gate in steps replaced by one that is a fraction of its parent's target."""
    gate = view.gate
    if gate is None or gate.step is None:
        return view
    return replace(view, gate=Gate(gate.parent, gate.step / targets.get(gate.parent, gate.step)))


def queues(tx: Connection, live: Sequence[Run]) -> dict[str, int]:
    """Return by pool the longest expected time in its platform's queue, in seconds from launch to start."""
    waits, longest = queue_waits.of(tx, [run.key for run in live]), dict[str, int]()
    for run in live:
        if (wait := waits.get(run.key)) and wait.starts_at is not None:
            longest[run.pool] = max(longest.get(run.pool, 0), wait.starts_at - run.planned_start)
    return longest


def _lower_evaluations(views: Sequence[JobView], records: Sequence[JobRecord], now: int) -> Iterator[JobView]:
    """Yield the views; those of evaluations have a low weight and no deadline until the day before their deadline.

    From then on, and if a job waits for its result, an evaluation has its model's weight and its deadline. Otherwise it
    gets only unused hours: with its deadline it would be planned before all jobs without a deadline.
    """
    patient = {
        record.spec.name: record.spec.start_from.parent
        for record in records
        if jobs.has_time(record.spec, now) and record.spec.start_from is not None
    }
    waited_for = {view.blocked.parent for view in views if isinstance(view.blocked, AwaitsVerdict)}
    for view in views:
        if view.name in patient and patient[view.name] not in waited_for:
            yield replace(view, weight=view.weight * _EVALUATION_WEIGHT, deadline=None)
        else:
            yield view


def _awaits_verdict(tx: Connection, record: JobRecord, gated: Collection[str]) -> AwaitsVerdict | None:
    """Return why a job that starts from an accepted version waits; None if its parent has an accepted version."""
    start = record.spec.start_from
    if start is None or start.at != "accepted" or start.parent not in gated or record.done_step:
        return None
    parent = jobs.find(tx, start.parent)
    if parent is None or not parent.done_step or versions.newest_accepted(tx, start.parent) is not None:
        return None  # before its parent's first checkpoint, the gate is the reason
    newest = next(reversed(versions.everything(tx, start.parent)), None)
    return AwaitsVerdict(start.parent, newest.name if newest else "", newest.state if newest else "")


def _live_run(run: Run) -> LiveRun:
    started = run.state.started if isinstance(run.state, Running | Stopping | Ended) else None
    return LiveRun(
        key=run.key,
        start=run.planned_start if started is None else started,
        deadline=run.deadline,
        held_until=run.held_until,
        jobs=tuple(lane.job for lane in run.lanes if lane.outcome is None),
        devices=run.devices,
    )


def job_view(
    record: JobRecord,
    pools: Mapping[str, Pool],
    overheads: Overheads,
    running: str | None,
    read_secret: Callable[[str], object] = str,
    priors: Priors | None = None,
) -> JobView:
    """Return an open job as the planner's input; ``running`` is the run ID of its live run.

    ``read_secret`` is that of :func:`gather`; ``priors`` are the speeds of jobs without measurements.
    """
    spec, state = record.spec, record.state
    blocked: Reason | None = None
    match state:
        case Held(by=by, why=why):
            blocked = HeldByPerson(by, why)
        case Active(wish="finish", by=by, why=why):
            blocked = HeldByPerson(by, why)
        case Active(wish="hold" | "cancel" as wish, by=by):
            blocked = HeldByPerson(by, f"{wish} asked for while running")
        case _ if record.faults:
            blocked = BadDefinition(spec.name, "; ".join(record.faults))
        case _:
            pass
    allowed = [name for name in pools if not spec.pools or name in spec.pools]
    if spec.requirements is not None:
        lock = spec.requirements  # before they are locked, any pool may be used
        options = {name: options_for(spec, pools[name].platform, pools[name].options) for name in allowed}
        if lock.digest:
            allowed = [name for name in allowed if has_lock(pools[name].platform, options[name], lock.targets)]
        if not allowed and blocked is None:
            why = f"its requirements are locked for no pool that it may use; schedctl queue update {spec.name} does it"
            blocked = BadDefinition(spec.name, why)
    if spec.secrets:
        lacking = {name: missing for name in allowed if (missing := lacks_secrets(spec, pools[name], read_secret))}
        if allowed and len(lacking) == len(allowed) and blocked is None:
            blocked = min(lacking.values(), key=lambda missing: missing.pool != "")  # a file is created most easily
        allowed = [name for name in allowed if name not in lacking]
    usable = [pools[name] for name in allowed]
    reference_rate, rates_by_pool = _rates(spec, usable, overheads.measured, priors or Priors())
    return JobView(
        name=spec.name,
        weight=spec.weight,
        target_step=spec.target_step,
        done_step=record.done_step,
        needs=spec.needs,
        rates=rates_by_pool,
        reference_rate=reference_rate,
        **overheads.on(spec, usable),
        device_speedup=spec.device_speedup,
        allowed_pools=tuple(allowed) if spec.requirements or spec.secrets else spec.pools,
        gate=None if record.done_step else spec.gate,  # a gate only applies before the first start
        not_before=spec.not_before,
        retry_at=state.retry_at if isinstance(state, Queued) else None,
        deadline=spec.deadline,
        blocked=blocked,
        running=running,
        last_pool=record.last_pool,
        position=record.position,
        misfit=misfit(spec, [pools[name] for name in allowed]),
        kind=spec.sweep or spec.name,
    )


def lacks_secrets(spec: JobSpec, pool: Pool, read_secret: Callable[[str], object]) -> SecretMissing | None:
    """Return why a session of a job on a pool would lack its secrets, None if it has them all."""
    names = ", ".join(spec.secrets)
    delivery = secret_way(pool.platform, pool.options) if spec.secrets else None
    if delivery is not None and delivery.kind == "none":
        return SecretMissing(names, pool.name, delivery.why, delivery.remedy)
    if delivery is not None and delivery.kind == "given":
        for name in spec.secrets:
            try:
                read_secret(name)
            except ConfigError as error:
                problem = error.problems[0]
                return SecretMissing(name, "", f"{problem.why}: {problem.file}", problem.remedy)
    return None


def gives_secrets(pool: Pool) -> bool:
    """Return whether sessions of a pool get the daemon's secrets."""
    return secret_way(pool.platform, pool.options).kind == "given"


def view_of_new(
    spec: JobSpec,
    pools: Mapping[str, Pool],
    now: int,
    place: int,
    priors: Priors | None = None,
    overheads: Overheads | None = None,
) -> JobView:
    """Return a job that is not in the queue as the planner's input, at queue position ``place``.

    Several jobs can share ``overheads`` without measurements, which saves memory.
    """
    record = JobRecord(spec, Queued(now), 0, 0, 0, None, None, now, place)
    return job_view(record, pools, overheads or Overheads({}), running=None, priors=priors)


def priors_of(tx: Connection, pools: Mapping[str, Pool]) -> Priors:
    """Return the speeds of jobs without measurements, as the planner uses them."""
    specs = (record.spec for record in jobs.everything(tx))
    return Priors(seen_of_runs(specs, rates.everything(tx), pools))


def _rates(
    spec: JobSpec, pools: Sequence[Pool], measured: Mapping[tuple[str, str], RateRecord], prior_rates: Priors
) -> tuple[float, dict[str, Rate]]:
    """Return the job's steps per second on the reference device, and its rate on each pool.

    A measured rate is used on its pool. Elsewhere the prior is scaled by its error where the job was measured. The
    reference is the definition's guess, scaled in the same way: the adviser knows cards, not the value of a step.
    """
    guess = spec.steps_per_hour / 3_600
    estimates = [
        (pool, rate)
        for pool in pools
        if measured
        and (rate := measured.get((spec.name, pool.name)))
        and rate.samples > 0
        and rate.steps_per_second > 0
    ]
    priors = prior_rates.of(spec, pools)
    correction = _middle([rate.steps_per_second / priors[pool.name][0] for pool, rate in estimates])
    surest = ELSEWHERE_SIGMA if estimates and is_advised(spec) else math.inf
    beliefs = {prior: Rate(prior[0] * correction, min(prior[1], surest), 0) for prior in set(priors.values())}
    answer = {name: beliefs[prior] for name, prior in priors.items()}
    answer.update({pool.name: Rate(rate.steps_per_second, rate.sigma, rate.samples) for pool, rate in estimates})
    return guess * _middle([rate.steps_per_second / (guess * pool.speed) for pool, rate in estimates]), answer


def _middle(ratios: Sequence[float]) -> float:
    return sorted(ratios)[len(ratios) // 2] if ratios else 1.0


# Arrivals: when jobs of each kind were added; the planner predicts the next ones.
#
# A kind is a job with its generations, or all jobs of a sweep. None is predicted for a job that is held, cancelled or
# failed.
def arrivals(
    tx: Connection, records: Sequence[JobRecord], as_new: Callable[[JobRecord], JobView], now: int, until: int
) -> tuple[Arrivals, ...]:
    """Return the history of each kind that was added on more than one day, or whose next job its user announced.

    ``as_new`` returns a job as an untrained one; kinds for which it fails are left out.
    """
    begun = generations.beginnings(tx)
    kinds: dict[str, list[tuple[int, JobRecord]]] = {}
    for record in records:
        spec = record.spec
        if spec.role != EVALUATE:
            instants = (record.created_at, *(at for at, _ in begun.get(spec.name, ())))
            kinds.setdefault(spec.sweep or spec.name, []).extend((instant, record) for instant in instants)
    expected = []
    for kind, came in sorted(kinds.items()):
        came.sort(key=lambda one: (one[0], one[1].spec.name))
        newest = came[-1][1]
        expects = newest.spec.expects
        again = came[-1][0] - came[0][0] >= DAY
        if not isinstance(newest.state, Queued | Active | Done) or not (expects or again):
            continue
        upcoming = coming(expects, came[-1][0], now, until) if expects else ()
        instants = tuple(instant for instant, _ in came)
        with isolated({}, newest.spec.name):  # gather has recorded the error
            expected.append(Arrivals(kind, instants, replace(as_new(newest), kind=kind, blocked=None), upcoming))
    return tuple(expected)


# Shares: the part of common device hours that each job should have, and what it had so far.
def hour_shares(tx: Connection, records: Iterable[JobRecord]) -> dict[str, HourShare]:
    """Return the share of each job that has one, by name. Hours count from when the last job of the group was added.

    A job whose partner is not in the queue any more has no share.
    """
    by_name = {record.spec.name: record for record in records}
    groups: dict[str, list[JobRecord]] = {}
    for record in by_name.values():
        share = record.spec.share
        if share is not None and share.partner in by_name and by_name[share.partner].spec.share is None:
            groups.setdefault(share.partner, [by_name[share.partner]]).append(record)
    result: dict[str, HourShare] = {}
    for name, members in groups.items():
        since = max(record.created_at for record in members)
        seconds = ledger.device_seconds(tx, [record.spec.name for record in members], since)
        parts = {one.spec.name: one.spec.share.percent / 100 for one in members if one.spec.share is not None}
        parts[name] = max(0.0, 1 - sum(parts.values()))
        total = sum(seconds.values())
        result |= {member: HourShare(name, part, seconds[member], total) for member, part in parts.items() if part > 0}
    return result


# Parents: the checkpoint from which a job is initialised, chosen among those that none of its sessions has refused.
def pinned_parent(tx: Connection, record: JobRecord) -> Manifest | None:
    """Return the checkpoint that was chosen for a job; None before the choice, and if it was found to be damaged."""
    generation = generations.current(tx, record.spec.name)
    if generation is None or generation.parent_key is None:
        return None
    saved = checkpoints.find(tx, generation.parent_key)
    return saved.manifest if saved is not None and saved.state == "good" else None


def choose_parent(tx: Connection, record: JobRecord, start: StartFrom) -> Manifest | ParentUnusable:
    """Return the checkpoint from which a job starts: the chosen one, else the newest; or why there is none.

    A checkpoint that a session refused is not given to any job before it is verified.
    """
    suspected, pinned = set(conditions.reasons(tx, conditions.SUSPECTED)), pinned_parent(tx, record)
    if pinned is not None and pinned.key in suspected:
        return ParentUnusable(start.parent, pinned.step, "the one that was chosen is being verified")
    if pinned is not None:
        return pinned
    if record.spec.role == EVALUATE:  # it evaluates exactly one checkpoint
        return ParentUnusable(start.parent, 0, "the checkpoint that it evaluates is damaged")
    step = max(1, math.ceil(start.gate.fraction * jobs.get(tx, start.parent).spec.target_step - _TOLERANCE))
    generation = generations.current(tx, record.spec.name)
    refused = suspected.union(generation.refused if generation else ())
    newest = next((manifest for manifest in _candidates(tx, start) if manifest.key not in refused), None)
    if newest is None or newest.step < step:
        why = "its sessions could not start from those there are" if refused else "there is none"
        return ParentUnusable(start.parent, step, why)
    return newest


def lacks_parent(tx: Connection, record: JobRecord) -> ParentUnusable | None:
    """Return why a queued job has no checkpoint to start from although its gate is open; None if it needs none."""
    start = record.spec.start_from
    if start is None or record.checkpoint is not None or not isinstance(record.state, Queued):
        return None
    parent = jobs.find(tx, start.parent)
    if parent is None or parent.done_step < start.gate.fraction * parent.spec.target_step - _TOLERANCE:
        return None  # the gate is the reason
    choice = choose_parent(tx, record, start)
    return choice if isinstance(choice, ParentUnusable) else None


def _candidates(tx: Connection, start: StartFrom) -> Iterator[Manifest]:
    """Yield the possible checkpoints, best first; of a parent with gates only its newest accepted version."""
    if start.at == "accepted" and jobs.get(tx, start.parent).spec.gates:
        accepted = versions.newest_accepted(tx, start.parent)
        saved = checkpoints.find(tx, accepted.checkpoint) if accepted else None
        candidates = [saved] if saved is not None and saved.state == "good" else []
    else:
        candidates = checkpoints.newest(tx, start.parent)
    yield from (one.manifest for one in candidates)
