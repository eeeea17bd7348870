"""Parents: from whose weights a job begins, chosen among the checkpoints that no session of it has refused."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from sqlalchemy import Connection

from jobs.payload.store.manifest import Manifest
from jobs.spec import EVALUATE, StartFrom
from scheduler.core.job import Queued
from scheduler.core.reasons import ParentUnusable
from scheduler.store import checkpoints, conditions, generations, jobs, versions
from scheduler.store.jobs import JobRecord

_TOLERANCE = 1e-9  # steps, as the planner counts the gate's


def pinned_parent(tx: Connection, record: JobRecord) -> Manifest | None:
    """Return the checkpoint that was chosen for a job; None before that, and once it turned out to be damaged."""
    generation = generations.current(tx, record.spec.name)
    if generation is None or generation.parent_key is None:
        return None
    saved = checkpoints.find(tx, generation.parent_key)
    return saved.manifest if saved is not None and saved.state == "good" else None


def choose_parent(tx: Connection, record: JobRecord, start: StartFrom) -> Manifest | ParentUnusable:
    """Return the checkpoint that a job starts from: the one chosen before, else the newest; or why there is none.

    None that a session could not start from is given to anybody before it is verified.
    """
    suspected, pinned = _suspected(tx), pinned_parent(tx, record)
    if pinned is not None and pinned.key in suspected:
        return ParentUnusable(start.parent, pinned.step, "the one that was chosen is being verified")
    if pinned is not None:
        return pinned
    if record.spec.role == EVALUATE:  # of one checkpoint and no other
        return ParentUnusable(start.parent, 0, "the checkpoint that it evaluates is damaged")
    step = max(1, ceil(start.gate.fraction * jobs.get(tx, start.parent).spec.target_step - _TOLERANCE))
    generation = generations.current(tx, record.spec.name)
    refused = suspected.union(generation.refused if generation else ())
    newest = next((manifest for manifest in _candidates(tx, start) if manifest.key not in refused), None)
    if newest is None or newest.step < step:
        why = "its sessions could not start from those there are" if refused else "there is none"
        return ParentUnusable(start.parent, step, why)
    return newest


def lacks_parent(tx: Connection, record: JobRecord) -> ParentUnusable | None:
    """Return why a queued job has no checkpoint to start from though its gate is passed; None where it needs none."""
    start = record.spec.start_from
    if start is None or record.checkpoint is not None or not isinstance(record.state, Queued):
        return None
    parent = jobs.find(tx, start.parent)
    if parent is None or parent.done_step < start.gate.fraction * parent.spec.target_step - _TOLERANCE:
        return None  # it waits at its gate
    choice = choose_parent(tx, record, start)
    return choice if isinstance(choice, ParentUnusable) else None


def _suspected(tx: Connection) -> set[str]:
    """Return the checkpoints that a session could not start from and that are not verified yet."""
    return set(conditions.reasons(tx, conditions.SUSPECTED))


def _candidates(tx: Connection, start: StartFrom) -> Iterator[Manifest]:
    """Yield what a job may start from, the best first: of a parent with gates the newest version that was accepted."""
    if start.at == "accepted" and jobs.get(tx, start.parent).spec.gates:
        accepted = versions.newest_accepted(tx, start.parent)
        saved = checkpoints.find(tx, accepted.checkpoint) if accepted else None
        candidates = [saved] if saved is not None and saved.state == "good" else []
    else:
        candidates = checkpoints.newest(tx, start.parent)
    yield from (one.manifest for one in candidates)
