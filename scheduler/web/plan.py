"""Plan: the newest plan, and what it changed of an earlier one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.service.plan_diff import compare
from scheduler.store import plans
from scheduler.web.plan_shapes import (
    DeferralRow,
    FinishChange,
    NewestPlan,
    PlacementRow,
    PlanDifference,
    PlanHead,
    PlanRow,
    SeatRow,
    SessionChange,
)

if TYPE_CHECKING:
    from scheduler.core.plan import Placement, Plan
    from scheduler.web.source import Source


def newest(source: Source) -> NewestPlan:
    """Return the newest plan, if there is one."""
    with source.read() as tx:
        plan = source.plan(tx)
        return source.kept(
            "plan row", plans.newest_number(tx), lambda: NewestPlan(plan=None if plan is None else _row(plan))
        )


def difference(source: Source, since: int | None = None) -> PlanDifference:
    """Return what the newest plan changed of the one before, or of that in force at ``since``.

    Raises NoPlanToCompare.
    """
    app = source.app
    with source.read() as tx:
        version = plans.newest_number(tx)

    def make() -> PlanDifference:
        found = compare(app.reading, app.pools, source.now, app.policy.horizon_seconds, since)
        return PlanDifference(
            before=_head(found.before),
            after=_head(found.after),
            sessions=[
                SessionChange(
                    change=change.change,
                    before=None if change.before is None else placement_row(change.before),
                    after=None if change.after is None else placement_row(change.after),
                )
                for change in found.sessions
            ],
            finishes=[
                FinishChange(job=change.job, before=before, after=after)
                for change in found.difference.jobs
                if (before := change.before.finish if change.before else None)
                != (after := change.after.finish if change.after else None)
            ],
        )

    return source.kept(("difference", since), version, make)


def placement_row(place: Placement) -> PlacementRow:
    """Return a planned session as the API shows it."""
    return PlacementRow(
        pool=place.pool,
        start=place.start,
        end=place.end,
        seats=[SeatRow(job=seat.job, devices=seat.devices, steps=seat.steps) for seat in place.seats],
    )


def _row(plan: Plan) -> PlanRow:
    return PlanRow(
        made_at=plan.made_at,
        made_by=plan.made_by,
        digest=plan.digest,
        value=plan.value,
        bound=plan.bound,
        warnings=list(plan.warnings),
        placements=[placement_row(place) for place in plan.placements],
        deferrals=[DeferralRow(job=found.job, reason=found.reason.to_json()) for found in plan.deferrals],
    )


def _head(plan: Plan) -> PlanHead:
    return PlanHead(made_at=plan.made_at, made_by=plan.made_by, value=plan.value, bound=plan.bound)
