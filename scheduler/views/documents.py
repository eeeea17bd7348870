"""JSON documents of jobs, runs, checkpoints and plans, with the keys of ``--json`` and the API (docs/cli.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from config.secret import is_secret
from jobs.payload.redact import MARK

if TYPE_CHECKING:
    from jobs.corpus.manifest import CorpusManifest
    from jobs.lane_report import LaneReport
    from scheduler.core.job import JobState
    from scheduler.core.plan import Plan
    from scheduler.core.reasons import Reason
    from scheduler.core.run import Run, RunState, Wait
    from scheduler.store.checkpoints import CheckpointRecord
    from scheduler.store.jobs import JobRecord


def picked(value: object, *names: str) -> dict[str, Any]:
    """Return the named attributes of a value, unchanged."""
    return {name: getattr(value, name) for name in names}


def job_state_json(state: JobState | RunState) -> dict[str, Any]:
    """Return the name of a state and its own fields."""
    # Reads the slots, because asdict would copy every field deeply, a thousand times for a long queue.
    return {"state": type(state).__name__.lower(), "state_detail": picked(state, *state.__slots__)}


def job_json(record: JobRecord, waits: Reason | None = None) -> dict[str, Any]:
    """Return a job with its whole definition; secrets in its environment are hidden."""
    spec = record.spec
    environment = {name: MARK if is_secret(name) else text for name, text in spec.environment.items()}
    definition = {**asdict(spec), "environment": environment}
    return {**listed_job_json(record, waits), "checkpoint": record.checkpoint, "spec": definition}


def listed_job_json(record: JobRecord, waits: Reason | None) -> dict[str, Any]:
    """Return a job as an entry of a list; ``waits`` is why it waits."""
    return {
        **picked(record.spec, "name", "role"),
        **job_state_json(record.state),
        **picked(record.spec, "weight", "target_step", "not_before", "deadline"),
        "priority": record.spec.weight,
        **picked(record, "position", "done_step", "attempts", "failures", "last_pool", "created_at"),
        "waits": waits.to_json() if waits else None,
        "waiting": None,
    }


def wait_json(wait: Wait | None) -> dict[str, Any] | None:
    """Return why a session waits in its platform's queue; None if it does not wait."""
    return picked(wait, "why", "since", "starts_at", "place") if wait else None


def run_json(run: Run, heartbeats: Mapping[tuple[str, int], LaneReport] | None = None) -> dict[str, Any]:
    """Return a run with its lanes, and the newest heartbeat of each if ``heartbeats`` are given."""
    from scheduler.core.run import Ended, Running, Stopping

    state = run.state
    ended = state if isinstance(state, Ended) else None
    lanes = [asdict(lane) for lane in run.lanes]
    if heartbeats is not None:
        for lane in lanes:
            report = heartbeats.get((run.key, lane["index"]))
            lane["heartbeat"] = report.document() if report else None
    return {
        **picked(run, "key", "pool", "planned_start", "deadline", "held_until"),
        "run_id": run.key,
        "waiting": wait_json(run.wait),
        **job_state_json(state),
        "started": state.started if isinstance(state, Running | Stopping | Ended) and run.wait is None else None,
        "ended": ended.at if ended else None,
        "outcome": ended.outcome if ended else None,
        "lanes": lanes,
    }


def checkpoint_json(record: CheckpointRecord) -> dict[str, Any]:
    """Return a checkpoint with its components."""
    manifest = record.manifest
    return {
        **picked(manifest, "key", "job", "step", "attempt", "run", "parent", "created_at", "trained_seconds"),
        "bytes": manifest.size,
        "metrics": dict(manifest.metrics),
        "components": [asdict(component) for component in manifest.components],
        **picked(record, "state", "why", "pinned", "seen_at"),
    }


def corpus_json(manifest: CorpusManifest) -> dict[str, Any]:
    """Return the manifest of a corpus version, with its totals."""
    sums = {"rows": manifest.rows, "train_text_bytes": manifest.train_text_bytes}
    return {**asdict(manifest), "folder": str(manifest.folder), **sums}


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return a plan with its placements and reasons."""
    return {
        **picked(plan, "made_at", "made_by", "digest", "value", "bound"),
        "warnings": list(plan.warnings),
        "placements": [asdict(placement) for placement in plan.placements],
        "deferrals": [{"job": deferral.job, "reason": deferral.reason.to_json()} for deferral in plan.deferrals],
        "kept": [asdict(kept) for kept in plan.kept],
    }
