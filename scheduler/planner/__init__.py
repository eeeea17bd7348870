"""Turns a snapshot into a plan: pure, seeded, every choice with its reason."""

from scheduler.planner.differ import Difference, differences
from scheduler.planner.dispatch import dispatch
from scheduler.planner.explain import explain
from scheduler.planner.layers import Options, Planner, plan_week
from scheduler.planner.value import value
from scheduler.planner.verify import verify
from scheduler.planner.whatif import AddJob, Edit, SetHours, SetWeight, TakeDown, UnknownName, what_if

__all__ = [
    "AddJob",
    "Difference",
    "Edit",
    "Options",
    "Planner",
    "SetHours",
    "SetWeight",
    "TakeDown",
    "UnknownName",
    "differences",
    "dispatch",
    "explain",
    "plan_week",
    "value",
    "verify",
    "what_if",
]
