"""What if: the questions that people put to the planner. The database is read once, and never written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs.spec import JobSpec
from scheduler.core.plan import Plan
from scheduler.core.pool import Pool
from scheduler.core.quota import MoneyQuota
from scheduler.core.reasons import Reason
from scheduler.planner import (
    AddJob,
    DeviceChoice,
    Edit,
    PlanDifference,
    Planner,
    PlannerOptions,
    SetHours,
    UnknownName,
    device_choices,
    explain,
    what_if,
)
from scheduler.service.facts.advised import Priors
from scheduler.service.facts.snapshot import load_snapshot, priors_of, view_of_new
from scheduler.store import jobs, plans
from scheduler.store.engine import Database
from scheduler.store.jobs import DuplicateJob, JobRecord


class WhatIfRefused(Exception):
    """A question that has no meaning in the present state; the message says why and what to do next."""


@dataclass(frozen=True, slots=True)
class PlanningContext:
    """What questions are answered with: the database, the pools by name, the instant, and how the daemon plans."""

    database: Database
    pools: Mapping[str, Pool]
    now: int
    horizon_seconds: int
    options: PlannerOptions


def ask_what_if(
    context: PlanningContext, specs: Sequence[JobSpec], edits: Sequence[Edit], policy: str | None
) -> tuple[Plan, PlanDifference]:
    """Return the plan with ``specs`` added, then ``edits`` made, and how it differs from the plan without either.

    Both carry on the plan in force, as the daemon would. ``policy`` makes the first by a simpler rule. Raises
    UnknownName, DuplicateJob, WhatIfRefused.
    """
    with context.database.read() as tx:
        snapshot = load_snapshot(tx, context.pools, context.now, context.horizon_seconds)
        records = {record.spec.name: record for record in jobs.everything(tx)}
        incumbent = plans.newest(tx)
        added = _added(context, specs, records, priors_of(tx, context.pools) if specs else None)
    for edit in edits:
        if isinstance(edit, SetHours):
            _must_count_hours(context.pools, edit.pool)
    return what_if(snapshot, [*added, *edits], policy, context.options, incumbent)


def ask_devices(context: PlanningContext, job: str) -> tuple[DeviceChoice, ...]:
    """Return what each count of devices would mean for a job, pool by pool. Raises UnknownName."""
    with context.database.read() as tx:
        snapshot = load_snapshot(tx, context.pools, context.now, context.horizon_seconds)
    view = next((view for view in snapshot.jobs if view.name == job), None)
    if view is None:
        raise UnknownName("job", job, [view.name for view in snapshot.jobs])
    pools = [pool.pool for pool in snapshot.pools]
    return tuple(choice for pool in pools for choice in device_choices(view, pool, snapshot.now))


def ask_plan(context: PlanningContext) -> Plan:
    """Return the plan that the daemon would make now."""
    with context.database.read() as tx:
        snapshot = load_snapshot(tx, context.pools, context.now, context.horizon_seconds)
        incumbent = plans.newest(tx)
    return Planner(context.options).plan(snapshot, incumbent)


def ask_why(context: PlanningContext, job: str) -> Reason | None:
    """Return why ``job`` does not start now; for one that is outbid, with the weight that would start it.

    None: it runs, or a plan made now would start it. Raises UnknownName for a job that is not open.
    """
    with context.database.read() as tx:
        snapshot = load_snapshot(tx, context.pools, context.now, context.horizon_seconds)
        incumbent = plans.newest(tx)
    return explain(snapshot, job, context.options, incumbent)


def _added(
    context: PlanningContext, specs: Sequence[JobSpec], records: Mapping[str, JobRecord], priors: Priors | None
) -> list[AddJob]:
    names = {spec.name for spec in specs}
    if len(names) < len(specs):
        raise WhatIfRefused("two of the jobs to add have one name. Give each its own")
    added = []
    for place, spec in enumerate(specs, start=len(records) + 1):
        if spec.name in records:
            raise DuplicateJob(spec.name)
        if spec.gate is not None and spec.gate.parent not in names | records.keys():
            raise WhatIfRefused(
                f"{spec.name} waits for {spec.gate.parent}, which is not in the queue. Add {spec.gate.parent} as well"
            )
        added.append(AddJob(view_of_new(spec, context.pools, context.now, place, priors)))
    return added


def _must_count_hours(pools: Mapping[str, Pool], name: str) -> None:
    if name not in pools:
        raise UnknownName("pool", name, list(pools))
    if all(isinstance(quota, MoneyQuota) for quota in pools[name].quotas):
        raise WhatIfRefused(f"{name} has no quota of hours that could change. See: schedctl quota")
