"""Layers: the one entry of the daemon. Each layer works without those above it, and nothing unverified gets out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from scheduler.core.plan import Plan
from scheduler.planner.case import make_case
from scheduler.planner.dispatch import dispatch
from scheduler.planner.verify import verify
from scheduler.planner.waiting import deferrals

if TYPE_CHECKING:
    from scheduler.core.snapshot import Snapshot


def plan_week(snapshot: Snapshot, incumbent: Plan | None = None) -> Plan:
    """Return the plan from ``snapshot.now`` to the horizon.

    ``incumbent`` is the plan in force, which is kept where nothing better is found. A plan that the verifier refuses
    never leaves: its good sessions are kept, and the warning names what was refused.
    """
    del incumbent
    plan = dispatch(snapshot)
    violations = verify(snapshot, plan)
    return _without(snapshot, plan, violations) if violations else plan


def _without(snapshot: Snapshot, plan: Plan, violations: list[str]) -> Plan:
    """Return only the sessions of ``plan`` that the verifier accepts one by one, in order."""
    kept = replace(plan, placements=())
    for placement in plan.placements:
        longer = replace(kept, placements=(*kept.placements, placement))
        if not verify(snapshot, longer):
            kept = longer
    warning = f"the verifier refused {len(plan.placements) - len(kept.placements)} sessions: {violations[0]}"
    reasons = deferrals(make_case(snapshot), kept.placements, {})
    return replace(kept, deferrals=reasons, warnings=(*plan.warnings, warning), made_by="fallback")
