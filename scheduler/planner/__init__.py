"""Turns a snapshot into a plan: pure, seeded, every choice with its reason."""

from scheduler.planner.dispatch import dispatch
from scheduler.planner.layers import Options, Planner, plan_week
from scheduler.planner.value import value
from scheduler.planner.verify import verify

__all__ = ["Options", "Planner", "dispatch", "plan_week", "value", "verify"]
