"""Shapes of plans and sessions, as in :mod:`scheduler.web.shapes`."""

from __future__ import annotations

from typing import Literal

from scheduler.core.plan import KeptHours, Placement
from scheduler.views.plan_history import SessionChange
from scheduler.web.shapes import Data, Shape


class DeferralRow(Shape):
    """A job that waits, and why."""

    job: str
    reason: Data


class PlanRow(Shape):
    """A plan."""

    made_at: int
    made_by: str
    digest: str
    value: float
    bound: float | None
    warnings: list[str]
    placements: list[Placement]
    deferrals: list[DeferralRow]
    kept: list[KeptHours]


class NewestPlan(Shape):
    """The newest plan, null when there is none yet."""

    plan: PlanRow | None


class PlanHead(Shape):
    """A plan without its sessions."""

    made_at: int
    made_by: str
    value: float
    bound: float | None


class FinishChange(Shape):
    """A job whose planned finish moved; null is "not within the horizon"."""

    job: str
    before: int | None
    after: int | None


class PlanDifference(Shape):
    """From the plan before the newest one, or the one in force at ``since``, to the newest."""

    before: PlanHead
    after: PlanHead
    sessions: list[SessionChange]
    finishes: list[FinishChange]


PlanDifference.model_rebuild(_types_namespace={"Placement": Placement})  # views name it for the type checker alone


class SessionRow(Shape):
    """A session of the timeline; ``key`` is null for one that is only planned."""

    pool: str
    start: int
    end: int
    phase: Literal["past", "bad", "running", "planned"]
    key: str | None
    jobs: list[str]
    outcome: str


class Span(Shape):
    """The sessions that touch [start, end)."""

    start: int
    end: int
    now: int
    sessions: list[SessionRow]
