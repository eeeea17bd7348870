"""Plans as JSON, for the database and for the process of the planner, which loads no database code."""

from typing import Any

from scheduler.core import reasons
from scheduler.core.plan import Deferral, Plan
from scheduler.core.reasons import Reason
from scheduler.store import codec


def dumped(plan: Plan) -> str:
    """Return a plan as canonical JSON."""
    deferrals = [{"job": deferral.job, "reason": deferral.reason.to_json()} for deferral in plan.deferrals]
    return codec.dump(codec.row_of(plan, deferrals=deferrals))


def loaded(body: str) -> Plan:
    """Return the plan that :func:`dumped` wrote. Raises KeyError, TypeError or ValueError."""
    document = codec.load_object(body)
    for placement in document["placements"]:
        if "seats" in placement:  # the name of lanes in older rows
            placement["lanes"] = placement.pop("seats")
    document["deferrals"] = tuple(
        codec.built(Deferral, {**deferral, "reason": _reason(deferral["reason"])}) for deferral in document["deferrals"]
    )
    return codec.built(Plan, document)


def _reason(document: Any) -> Reason:
    reason = reasons.from_json(document)
    codec.built(type(reason), {name: value for name, value in document.items() if name not in {"code", "sentence"}})
    return reason
