"""Feasibility: what would keep a job from ever starting, found when it is added and not a week later."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from scheduler.core.reasons import DoesNotFit, NoAllowedPool
from scheduler.planner import dispatch

if TYPE_CHECKING:
    from collections.abc import Collection

    from scheduler.core.reasons import Reason
    from scheduler.core.snapshot import Snapshot

_LASTING = (NoAllowedPool, DoesNotFit)


def obstacles(snapshot: Snapshot, names: Collection[str]) -> dict[str, Reason]:
    """Return, for those of the named jobs that no waiting will start, the reason.

    The dispatcher is asked about these jobs alone, as if their gates were open and their earliest start had come: it
    names the first reason that applies, and those two come before the lasting ones.
    """
    asked = tuple(
        replace(view, gate=None, not_before=None, retry_at=None) for view in snapshot.jobs if view.name in names
    )
    found = dispatch(replace(snapshot, jobs=asked))
    return {deferral.job: deferral.reason for deferral in found.deferrals if isinstance(deferral.reason, _LASTING)}
