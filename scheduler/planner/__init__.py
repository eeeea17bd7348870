"""Makes a plan from a snapshot: a pure, reproducible function; each waiting job gets one reason."""

from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.model.value import value
from scheduler.planner.planner import Planner, PlannerOptions, plan_week
from scheduler.planner.questions.devices import DeviceChoice, device_choices
from scheduler.planner.questions.differ import PlanComparison, differences
from scheduler.planner.questions.explain import explain
from scheduler.planner.questions.whatif import (
    Edit,
    InsertJob,
    SetDevices,
    SetHours,
    SetWeight,
    TakeDown,
    UnknownName,
    what_if,
)
from scheduler.planner.verify import verify

__all__ = [
    "DeviceChoice",
    "Edit",
    "InsertJob",
    "PlanComparison",
    "Planner",
    "PlannerOptions",
    "SetDevices",
    "SetHours",
    "SetWeight",
    "TakeDown",
    "UnknownName",
    "device_choices",
    "differences",
    "dispatch",
    "explain",
    "plan_week",
    "value",
    "verify",
    "what_if",
]
