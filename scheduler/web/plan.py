"""Plan: the newest plan, and what it changed of an earlier one."""

from __future__ import annotations

from scheduler.store import plans
from scheduler.views.documents import plan_json
from scheduler.views.plan_history import compare
from scheduler.web.shapes import (
    FinishChange,
    NewestPlan,
    PlanDifference,
)
from scheduler.web.source import Source


def newest(source: Source) -> NewestPlan:
    """Return the newest plan, if there is one."""
    with source.read() as tx:
        plan = source.plan(tx)

        def make() -> NewestPlan:
            return NewestPlan.model_validate({"plan": None if plan is None else plan_json(plan)})

        return source.kept("plan row", plans.newest_number(tx), make)


def difference(source: Source, since: int | None = None) -> PlanDifference:
    """Return what the newest plan changed of the one before, or of that in force at ``since``.

    Raises NoPlanToCompare.
    """
    app = source.app
    with source.read() as tx:
        version = plans.newest_number(tx)

    def make() -> PlanDifference:
        found = compare(app.reading, app.pools, source.now, app.policy.horizon_seconds, since)
        finishes = [
            FinishChange(job=change.job, before=before, after=after)
            for change in found.difference.jobs
            if (before := change.before.finish if change.before else None)
            != (after := change.after.finish if change.after else None)
        ]
        heads = {"before": found.before, "after": found.after}
        return PlanDifference.model_validate({**heads, "sessions": found.sessions, "finishes": finishes})

    return source.kept(("difference", since), version, make)
