"""The launch document: what a payload gets. Pure; its shape is the launch contract in docs/your-own-training.md."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from jobs.nouns.pool import Pool
from jobs.payload.store.tree import code_prefix
from jobs.spec import JobSpec
from scheduler.core.run import Lane, Run
from scheduler.service.facts.overheads import Overhead
from scheduler.service.launch.packages import told_packages
from scheduler.service.outside.ports import Policy

FORMAT = 1


def launch_document(  # noqa: PLR0913 - one keyword per part of the document
    *,
    run: Run,
    pool: Pool,
    specs: Mapping[str, JobSpec],
    overheads: Mapping[str, Overhead],
    stalls: Mapping[str, Mapping[str, Any]],
    restore: Mapping[str, Sequence[str]],
    parents: Mapping[str, str],
    data: Mapping[str, str],
    store: Mapping[str, str],
    clock: Mapping[str, float],
    policy: Policy,
    chain: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the launch document of a run as plain JSON types; mappings are keyed by job name.

    ``chain`` says how long a lane that ended waits for the next job, and which devices are free; None: no orders.
    """
    device = pool.options.get("expected_device")  # pools that name none are not checked: CPU rehearsals have none
    return {
        "format": FORMAT,
        "run": run.key,
        "clock": dict(clock),
        "deadline": run.deadline,
        "stop_margin_seconds": pool.stop_margin_seconds,
        "heartbeat_seconds": policy.heartbeat_seconds,
        "grace_seconds": policy.grace_seconds,
        "mtbf_seconds": pool.mtbf_seconds,
        "store": dict(store),
        "image": specs[run.lanes[0].job].image,  # of all of them: others have a session of their own
        "expected_devices": {"count": pool.held_devices(run.devices), "name": device} if device else None,
        "chain": chain,
        "lanes": [
            {
                **_lane(lane, specs[lane.job], overheads[lane.job], restore[lane.job], data[lane.job]),
                "packages": told_packages(lane, specs[lane.job], pool),
                "parent": parents.get(lane.job, ""),
                "stall": dict(stalls[lane.job]),
            }
            for lane in run.lanes
        ],
    }


def _lane(lane: Lane, spec: JobSpec, overhead: Overhead, restore: Sequence[str], data: str) -> dict[str, Any]:
    return {
        "index": lane.index,
        "job": spec.name,
        "attempt": lane.attempt,
        "devices": list(lane.devices),
        # Fixed by its name, so that every run of a job continues the same random stream.
        "seed": spec.seed or int.from_bytes(hashlib.sha256(spec.name.encode()).digest()[:4], "big"),
        "target_step": spec.target_step,
        "command": list(spec.command),
        "environment": dict(spec.environment),
        "secrets": list(spec.secrets),
        "data": data,
        "code": code_prefix(lane.code) if lane.code else "",
        "trees": dict(lane.trees),
        "whole": spec.whole,
        "setup_seconds": overhead.setup_seconds,
        "checkpoint_seconds": overhead.checkpoint_seconds,
        "closing_seconds": overhead.closing_seconds,
        "restore": list(restore),
    }
