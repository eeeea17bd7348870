"""Feasibility: what would keep a job from ever starting, found when it is added and not a week later."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from scheduler.core.reasons import DoesNotFit, NoAllowedPool

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from scheduler.core.plan import Plan
    from scheduler.core.reasons import Reason
    from scheduler.core.snapshot import Snapshot

_LASTING = (NoAllowedPool, DoesNotFit)


def obstacles(snapshot: Snapshot, names: Collection[str], plan: Callable[[Snapshot, None], Plan]) -> dict[str, Reason]:
    """Return, for those of the named jobs that no waiting will start, the reason.

    The planner is asked about these jobs alone, as if their gates were open and their earliest start had come: it
    names the first reason that applies, and those two come before the lasting ones.
    """
    asked = tuple(
        replace(view, gate=None, not_before=None, retry_at=None) for view in snapshot.jobs if view.name in names
    )
    found = plan(replace(snapshot, jobs=asked), None)
    return {deferral.job: deferral.reason for deferral in found.deferrals if isinstance(deferral.reason, _LASTING)}
