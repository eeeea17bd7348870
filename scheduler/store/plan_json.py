"""Plans as JSON. The planner's process, which has no database, sends its plans so and loads nothing of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scheduler.core import reasons
from scheduler.core.plan import Deferral, Placement, Plan, PlannedLane
from scheduler.store import codec

if TYPE_CHECKING:
    from scheduler.core.reasons import Reason


def dumped(plan: Plan) -> str:
    """Return a plan as canonical JSON."""
    deferrals = [{"job": deferral.job, "reason": deferral.reason.to_json()} for deferral in plan.deferrals]
    body = {
        "made_at": plan.made_at,
        "placements": plan.placements,
        "deferrals": deferrals,
        "value": plan.value,
        "bound": plan.bound,
        "made_by": plan.made_by,
        "warnings": plan.warnings,
    }
    return codec.dump(body)


def _placement(stored: dict[str, Any]) -> Placement:
    lanes = stored.pop("seats") if "seats" in stored else stored["lanes"]  # rows of before they were called lanes
    return codec.built(Placement, {**stored, "lanes": tuple(codec.built(PlannedLane, lane) for lane in lanes)})


def loaded(body: str) -> Plan:
    """Return the plan that :func:`dumped` wrote. Raises KeyError, TypeError or ValueError."""
    document = codec.load_object(body)
    document["placements"] = tuple(_placement(placement) for placement in document["placements"])
    document["deferrals"] = tuple(
        codec.built(Deferral, {**deferral, "reason": _reason(deferral["reason"])}) for deferral in document["deferrals"]
    )
    document["warnings"] = tuple(document["warnings"])
    return codec.built(Plan, document)


def _reason(document: Any) -> Reason:
    found = reasons.from_json(document)
    codec.built(type(found), {name: value for name, value in document.items() if name not in {"code", "sentence"}})
    return found
