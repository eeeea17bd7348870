"""Shapes: how the scheduler's values stand in ``--json``, and in the words of a table. docs/cli.md lists the keys."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scheduler.core.why import sentence, why

if TYPE_CHECKING:
    from scheduler.core.job import JobState
    from scheduler.core.plan import Plan
    from scheduler.core.run import Run
    from scheduler.store.checkpoints import CheckpointRecord


__all__ = ["checkpoint_json", "job_state_json", "plan_json", "run_json", "sentence", "share", "why"]


def job_state_json(state: JobState) -> dict[str, Any]:
    """Return the name of a job's state and its own fields."""
    # The fields of a slotted dataclass; asdict would copy each deeply, a thousand times for a long queue.
    detail = {name: getattr(state, name) for name in state.__slots__}
    return {"state": type(state).__name__.lower(), "state_detail": detail}


def share(part: int, whole: int) -> str:
    """Return a percentage, ``33 %``."""
    return f"{100 * part / whole:.0f} %" if whole > 0 else ""


def run_json(run: Run) -> dict[str, Any]:
    """Return a run with its lanes."""
    from scheduler.core.run import Ended, Running, Stopping

    state = run.state
    ended = state if isinstance(state, Ended) else None
    return {
        "key": run.key,
        "pool": run.pool,
        "state": type(state).__name__.lower(),
        "state_detail": {name: getattr(state, name) for name in state.__slots__},
        "planned_start": run.planned_start,
        "deadline": run.deadline,
        "held_until": run.held_until,
        "started": state.started if isinstance(state, Running | Stopping | Ended) else None,
        "ended": ended.at if ended else None,
        "outcome": ended.outcome if ended else None,
        "lanes": [asdict(lane) for lane in run.lanes],
    }


def checkpoint_json(record: CheckpointRecord) -> dict[str, Any]:
    """Return a checkpoint with its components."""
    manifest = record.manifest
    return {
        "key": manifest.key,
        "job": manifest.job,
        "step": manifest.step,
        "attempt": manifest.attempt,
        "run": manifest.run,
        "parent": manifest.parent,
        "created_at": manifest.created_at,
        "trained_seconds": manifest.trained_seconds,
        "bytes": manifest.bytes,
        "metrics": dict(manifest.metrics),
        "components": [asdict(component) for component in manifest.components],
        "state": record.state,
        "why": record.why,
        "pinned": record.pinned,
        "seen_at": record.seen_at,
    }


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return a plan with its placements and reasons."""
    return {
        "made_at": plan.made_at,
        "made_by": plan.made_by,
        "digest": plan.digest,
        "value": plan.value,
        "bound": plan.bound,
        "warnings": list(plan.warnings),
        "placements": [asdict(placement) for placement in plan.placements],
        "deferrals": [{"job": deferral.job, "reason": deferral.reason.to_json()} for deferral in plan.deferrals],
    }
