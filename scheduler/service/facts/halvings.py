"""Successive halving: promote a sweep's best candidates from rung to rung, and keep jobs and sweeps within budgets."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from sqlalchemy import Connection

from jobs.grouping import grouped
from jobs.nouns.pool import Pool
from jobs.nouns.window import HOUR
from jobs.spec import Halving, JobSpec
from scheduler.core import job as arrows
from scheduler.core.halving import Decision, SweepCandidate, decide, rung_of
from scheduler.core.job import Active, Queued
from scheduler.core.plan import Placement
from scheduler.core.reasons import BudgetSpent
from scheduler.core.run import Run
from scheduler.core.snapshot import JobView
from scheduler.service.outside.ports import Ports
from scheduler.store import checkpoints, jobs, ledger, watched
from scheduler.store.jobs import JobRecord

# A session with a budget may take longer than planned: by a quarter of its time, but at least by five set-ups. If it
# ended before its stall rules apply, it would be repeated without ever counting as a failure.
_SPARE, _SETUPS = 4, 5
NEVER = 1 << 62


def pause(spec: JobSpec) -> tuple[str, int | None]:
    """Return why a job ends at the step of its rung, and its full target step; "" and None at the full target."""
    rule = spec.halving
    if rule is None or rule.left_at is not None or spec.target_step >= rule.rungs[-1]:
        return "", None
    rung = rung_of(rule, spec.target_step)
    here, next_ = (rule.candidates // rule.factor**level for level in (rung, rung + 1))
    return f"rung {rung + 1} of {len(rule.rungs)} is trained; the best {next_} of {here} continue", rule.rungs[-1]


def left(spec: JobSpec) -> Halving | None:
    """Return the halving rule of a job with the mark that it leaves the comparison at its present rung."""
    return spec.halving and replace(spec.halving, left_at=rung_of(spec.halving, spec.target_step))


def due(ports: Ports, tx: Connection) -> list[str]:
    """Return the sweeps for which a decision must be stored, for example after a request of a person."""
    return [sweep for sweep, members in jobs.candidates(tx).items() if _decision(ports, tx, members) != Decision()]


def look(ports: Ports, sweeps: Sequence[str], now: int) -> None:
    """Store the decisions on these sweeps, each in a transaction of its own."""
    for sweep in sweeps:
        with ports.write() as tx:
            consider(ports, tx, sweep, now)


def consider(ports: Ports, tx: Connection, sweep: str, now: int) -> None:
    """Promote the candidates of a sweep that are among the best of their rung, and end the others."""
    members = jobs.candidates(tx).get(sweep, []) if sweep else []
    decision = _decision(ports, tx, members)
    for record in members:
        name, rule, state = record.spec.name, record.spec.halving, record.state
        if rule is None or name not in {*decision.promoted, *decision.dropped}:
            continue
        rung, value = rung_of(rule, record.spec.target_step), _value(tx, record)
        place = f"rung {rung + 1} of {len(rule.rungs)}, {rule.metric} {'missing' if value is None else f'{value:.6g}'}"
        if name in decision.promoted:
            queued, step = arrows.promote(state, now), rule.rungs[rung + 1]
            jobs.change_state(tx, name, state, queued, "promote", now, why=f"among the best at {place}", step=step)
            jobs.change_spec(tx, name, now, "daemon", target_step=step)
        else:
            done = arrows.drop(state, f"not among the best 1 in {rule.factor} at {place}")
            jobs.change_state(tx, name, state, done, "drop", now, why=done.why)
            jobs.change_spec(tx, name, now, "daemon", halving=left(record.spec))
        ports.log.info("job.compared", job=name, sweep=sweep, promoted=name in decision.promoted, at=place)


def _decision(ports: Ports, tx: Connection, members: Sequence[JobRecord]) -> Decision:
    """Return the jobs to promote and to drop; none while the budget does not allow a useful session."""
    present = [(record, record.spec.halving) for record in members if record.removed_at is None]
    candidates = [
        SweepCandidate(record.spec.name, rung_of(rule, record.spec.target_step), state, value)
        for record, rule in present
        if rule is not None and (state := _state(record))
        for value in [_value(tx, record) if state == "waits" else None]
    ]
    rule = next((rule for _, rule in present if rule is not None), None)
    if rule is None or all(one.state != "waits" for one in candidates):
        return Decision()
    decision = decide(rule, candidates)
    if decision.promoted and any(
        budget_spent(record, budgets(tx), ports.pools) for record, _ in present if _state(record) == "waits"
    ):
        return Decision()
    return decision


def _state(record: JobRecord) -> Literal["trains", "waits", "out"]:
    if record.spec.halving is None or record.spec.halving.left_at is not None:
        return "out"
    if isinstance(record.state, Queued | Active):
        return "trains"
    return "waits" if record.stopped_early else "out"


def _value(tx: Connection, record: JobRecord) -> float | None:
    """Return the metric of a job at its target step, None if that checkpoint is not good or lacks the metric."""
    saved = checkpoints.find(tx, record.checkpoint) if record.checkpoint and not record.result_lost else None
    rule = record.spec.halving
    return saved.manifest.metrics.get(rule.metric) if rule is not None and saved is not None else None


# Budgets: charges, holds and possible charges of sessions count, on each device.
def account(spec: JobSpec) -> str:
    """Return the name of the budget that a job uses: its sweep, or ``job NAME`` for its own; "" without a budget."""
    if spec.halving is not None:
        return spec.sweep
    return "" if spec.budget_seconds is None else f"job {spec.name}"


def budget_of(spec: JobSpec) -> int:
    """Return the device seconds that the budget of a job or its sweep allows."""
    return spec.halving.budget_seconds if spec.halving is not None else spec.budget_seconds or 0


def has_budget(record: JobRecord) -> bool:
    """Return whether a job or its sweep has a budget."""
    return account(record.spec) != ""


def budgets(tx: Connection) -> dict[str, int]:
    """Return the device seconds that remain of each budget, by its name as :func:`account` returns it."""
    members = grouped((account(record.spec), record) for record in jobs.with_budget(tx))
    return {name: _left_seconds(tx, records) for name, records in members.items()}


def _left_seconds(tx: Connection, members: Sequence[JobRecord]) -> int:
    present = [record for record in members if record.removed_at is None]
    if not present:
        return 0
    names = {record.spec.name for record in members}
    used = sum(ledger.device_seconds(tx, names, min(record.created_at for record in present)).values())
    unproved = sum(
        len(lane.devices) * (one.run.held_until - one.run.planned_start)
        for one in watched.everything(tx)
        for lane in one.run.lanes
        if one.booked is None and lane.job in names
    )
    return max(budget_of(record.spec) for record in present) - used - unproved


def least_seconds(spec: JobSpec) -> int:
    """Return the shortest useful session of a job in seconds: its set-up and one save."""
    return spec.setup_seconds + spec.checkpoint_seconds


def budget_spent(
    record: JobRecord, left_by_account: Mapping[str, int], pools: Mapping[str, Pool]
) -> BudgetSpent | None:
    """Return why a job waits for a larger budget, None if a useful session on some pool is possible."""
    spec = record.spec
    if not has_budget(record) or isinstance(record.state, Active):
        return None
    if _devices_allowed(spec, left_by_account, pools) >= spec.needs.devices_min:
        return None
    return BudgetSpent(spec.name, spec.sweep if spec.halving else "", left_by_account.get(account(spec), 0) / HOUR)


def within_budget(
    view: JobView, record: JobRecord, left_by_account: Mapping[str, int], pools: Mapping[str, Pool]
) -> JobView:
    """Return a job's view that fits its budget: unchanged, on fewer devices, or blocked."""
    if not has_budget(record) or isinstance(record.state, Active):
        return view
    if spent := budget_spent(record, left_by_account, pools):
        return replace(view, blocked=view.blocked or spent)
    allowed = _devices_allowed(record.spec, left_by_account, pools)
    return replace(view, needs=replace(view.needs, devices_max=min(view.needs.devices_max, allowed)))


def _devices_allowed(spec: JobSpec, left_by_account: Mapping[str, int], pools: Mapping[str, Pool]) -> int:
    """Return the number of devices for which the budget allows a useful session on any of the job's pools."""
    overrun = max((pool.overrun_seconds for name, pool in pools.items() if name in (spec.pools or pools)), default=0)
    return left_by_account.get(account(spec), 0) // (least_seconds(spec) + overrun)


def longest(tx: Connection, lanes: Iterable[tuple[JobSpec, int]]) -> int | None:
    """Return for how many seconds budgets allow these (job, devices) to run together; None if no job has a budget."""
    devices: Counter[str] = Counter()
    for spec, count in lanes:
        if name := account(spec):
            devices[name] += count
    if not devices:
        return None
    left_by_account = budgets(tx)
    return min(left_by_account[name] // count for name, count in devices.items())


def within_budgets(tx: Connection, placement: Placement, pool: Pool, now: int) -> tuple[Placement, int] | None:
    """Return a placement that the budgets of its jobs and sweeps allow, and the latest deadline that they allow.

    It may be shorter than planned, or keep only the first of the lanes with the same budget. None if too little is
    left for a useful session.
    """
    specs = {lane.job: jobs.get(tx, lane.job).spec for lane in placement.lanes}
    one_for_each = {account(specs[lane.job]) or f"job {lane.job}": lane for lane in reversed(placement.lanes)}
    for lanes in (placement.lanes, tuple(reversed(one_for_each.values()))):
        seconds = longest(tx, [(specs[lane.job], lane.devices) for lane in lanes])
        if seconds is None:
            return placement, NEVER
        latest, present = now + seconds - pool.overrun_seconds, [specs[lane.job] for lane in lanes]
        if placement.end <= latest:  # time held for slowness blocks other jobs of the same budget
            slow = _SETUPS * (pool.setup_seconds + max(spec.setup_seconds for spec in present))
            most = placement.end + max((placement.end - now) // _SPARE, slow)
            return replace(placement, lanes=lanes), min(latest, most)
        if latest - now >= max(map(least_seconds, present)):
            return replace(placement, lanes=lanes, end=latest), latest
    return None


def latest_deadline(tx: Connection, run: Run, wanted: int, now: int) -> int:
    """Return the deadline of a waiting run whose hold begins now: ``wanted``, or earlier by the budgets of its jobs."""
    lanes = [(jobs.get(tx, lane.job, removed=True).spec, len(lane.devices)) for lane in run.lanes]
    more = longest(tx, lanes)
    if more is None:
        return wanted
    held = max(ledger.of_runs(tx, [run.key]), key=lambda entry: entry.at)
    return min(wanted, now + held.end - held.start + max(0, more) - (run.held_until - run.deadline))
