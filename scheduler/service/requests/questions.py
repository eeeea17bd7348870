"""What-if questions to the planner, and obstacles that keep a job from ever starting."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from jobs.nouns.pool import Pool
from jobs.nouns.quota import MoneyQuota
from jobs.nouns.window import DAY
from jobs.problem import Refusal
from jobs.spec import JobSpec
from scheduler.core.plan import Plan
from scheduler.core.reasons import DeadlineUnreachable, DoesNotFit, NoAllowedPool, Reason, SecretMissing
from scheduler.core.snapshot import JobView, Snapshot
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.planner.questions import whatif
from scheduler.planner.questions.differ import PlanComparison
from scheduler.planner.questions.explain import explain
from scheduler.service.facts.overheads import Priors
from scheduler.service.facts.snapshot import by_fraction, load_snapshot, priors_of, view_of_new
from scheduler.store import jobs, plans
from scheduler.store.engine import Database
from scheduler.store.jobs import JobRecord, duplicate_job

_LASTING = (NoAllowedPool, DoesNotFit, SecretMissing)
_FORESEEN_SECONDS = 60 * DAY  # later deadlines are not checked


@dataclass(frozen=True, slots=True)
class PlanningContext:
    """The context of questions: database, pools by name, the instant, and the daemon's planning rules."""

    database: Database
    pools: Mapping[str, Pool]
    now: int
    horizon_seconds: int
    options: PlannerOptions


def ask_what_if(
    context: PlanningContext, specs: Sequence[JobSpec], edits: Sequence[whatif.Edit], policy: str | None
) -> tuple[Plan, PlanComparison]:
    """Return the plan with ``specs`` added and ``edits`` applied, and its differences from the plan without them.

    Both start from the current plan, as in the daemon. ``policy`` names a simpler rule for the first plan. Raises
    UnknownName, Refusal.
    """
    with context.database.read() as tx:
        snapshot = load_snapshot(tx, context.pools, context.now, context.horizon_seconds)
        records = {record.spec.name: record for record in jobs.everything(tx)}
        incumbent = plans.newest(tx)
        added = _added(context, specs, records, priors_of(tx, context.pools) if specs else None)
    for edit in edits:
        if isinstance(edit, whatif.SetHours):
            if edit.pool not in context.pools:
                raise whatif.UnknownName("pool", edit.pool, list(context.pools))
            if all(isinstance(quota, MoneyQuota) for quota in context.pools[edit.pool].quotas):
                raise Refusal(f"{edit.pool} has no quota of hours that could change", remedy="See: schedctl quota")
    return whatif.what_if(snapshot, [*added, *edits], policy, context.options, incumbent)


def ask_devices(context: PlanningContext, job: str) -> tuple[whatif.DeviceChoice, ...]:
    """Return the effect of each number of devices on a job, by pool. Raises UnknownName."""
    with context.database.read() as tx:
        snapshot = load_snapshot(tx, context.pools, context.now, context.horizon_seconds)
    view = next((view for view in snapshot.jobs if view.name == job), None)
    if view is None:
        raise whatif.UnknownName("job", job, [view.name for view in snapshot.jobs])
    pools = [pool.pool for pool in snapshot.pools]
    return tuple(choice for pool in pools for choice in whatif.device_choices(view, pool, snapshot.now))


def ask_plan(context: PlanningContext) -> tuple[Plan, Snapshot]:
    """Return the plan that the daemon would make now, and its input."""
    with context.database.read() as tx:
        snapshot = load_snapshot(tx, context.pools, context.now, context.horizon_seconds)
        incumbent = plans.newest(tx)
    return Planner(context.options).plan(snapshot, incumbent), snapshot


def ask_why(context: PlanningContext, job: str) -> Reason | None:
    """Return why ``job`` does not start now, with the weight that would start it if other jobs have priority.

    None: it runs, or a plan made now would start it. Raises UnknownName for a job that is not open.
    """
    with context.database.read() as tx:
        snapshot = load_snapshot(tx, context.pools, context.now, context.horizon_seconds)
        incumbent = plans.newest(tx)
    return explain(snapshot, job, context.options, incumbent)


def _added(
    context: PlanningContext, specs: Sequence[JobSpec], records: Mapping[str, JobRecord], priors: Priors | None
) -> list[whatif.InsertJob]:
    names = {spec.name for spec in specs}
    if len(names) < len(specs):
        raise Refusal("two of the jobs to add have the same name", remedy="Give each its own name")
    targets = {spec.name: spec.target_step for spec in (*(record.spec for record in records.values()), *specs)}
    added = []
    for place, spec in enumerate(specs, start=len(records) + 1):
        if spec.name in records:
            raise duplicate_job(spec.name)
        if spec.gate is not None and spec.gate.parent not in names | records.keys():
            raise Refusal(
                f"{spec.name} waits for {spec.gate.parent}, which is not in the queue",
                remedy=f"Add {spec.gate.parent} as well",
            )
        view = view_of_new(spec, context.pools, context.now, place, priors)
        added.append(whatif.InsertJob(by_fraction(view, targets)))
    return added


def obstacles(snapshot: Snapshot, names: Collection[str]) -> dict[str, Reason]:
    """Return the lasting reasons for which jobs among ``names`` will never start, by job.

    The dispatcher plans each of these jobs alone, with open gates and without an earliest start, because it names the
    first applicable reason and these two precede the lasting ones.
    """
    views = tuple(replace(one, gate=None, not_before=None, retry_at=None) for one in snapshot.jobs if one.name in names)
    dispatched = dispatch(replace(snapshot, jobs=views))
    return {deferral.job: deferral.reason for deferral in dispatched.deferrals if isinstance(deferral.reason, _LASTING)}


def late(snapshot: Snapshot, names: Collection[str]) -> dict[str, Reason]:
    """Return available and required steps for those named jobs that no plan can finish before their deadline.

    Each is planned alone, with its gate open, on all unused hours; other jobs can only reduce these.
    """
    result: dict[str, Reason] = {}
    for view in snapshot.jobs:
        ahead = None if view.deadline is None else view.deadline - snapshot.now
        if view.name not in names or view.deadline is None or ahead is None or ahead > _FORESEEN_SECONDS:
            continue
        speed = max((view.speed(pool, view.needs.devices_max) for pool in view.rates), default=0.0)
        if not speed or view.remaining_steps <= 0:
            continue
        alone = replace(view, gate=None, retry_at=None, blocked=None)
        plan = dispatch(replace(snapshot, jobs=(alone,), horizon_seconds=max(1, ahead))) if ahead > 0 else None
        steps = _steps_before(plan, view, view.deadline) if plan is not None else 0
        if steps < view.remaining_steps:
            hours = 3_600 * speed
            result[view.name] = DeadlineUnreachable(view.deadline, view.remaining_steps / hours, steps / hours)
    return result


def _steps_before(plan: Plan, view: JobView, deadline: int) -> int:
    """Return the steps of a job that a plan trains by ``deadline``; a session beyond it counts in proportion."""
    steps = 0.0
    for placement in plan.placements:
        share = min(1.0, (deadline - placement.start) / max(1, placement.end - placement.start))
        steps += sum(lane.steps for lane in placement.lanes if lane.job == view.name) * max(0.0, share)
    return round(steps)
