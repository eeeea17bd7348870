"""Start: from whose weights a job begins. Chosen at its first launch, kept until it has a checkpoint of its own."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from jobs.spec import EVALUATE
from scheduler.store import checkpoints, generations, jobs, versions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from jobs.payload.store.manifest import Manifest
    from jobs.spec import StartFrom
    from scheduler.service.outside.ports import Ports
    from scheduler.store.jobs import JobRecord

_TOLERANCE = 1e-9  # steps, as the planner counts the gate's


def pinned(ports: Ports, tx: Connection, records: Sequence[JobRecord], now: int) -> bool:
    """See to it that each job that starts from another has its checkpoint; tell whether all can be launched.

    One that was chosen before stays, unless it turned out to be damaged since.
    """
    for record in records:
        start = record.spec.start_from
        if start is None or record.checkpoint is not None or _parent(tx, record) is not None:
            continue
        if record.spec.role == EVALUATE:  # of one checkpoint and no other
            ports.log.warning("reserve.parentless", job=record.spec.name, why="what it evaluates is damaged")
            return False
        step = max(1, ceil(start.gate.fraction * jobs.get(tx, start.parent).spec.target_step - _TOLERANCE))
        name = record.spec.name
        generation = generations.current(tx, name)
        refused = generation.refused if generation else ()
        found = _candidates(tx, start)
        newest = next((manifest for manifest in found if manifest.key not in refused), None)
        if newest is None or newest.step < step:
            why = f"no checkpoint of {start.parent} at step {step} or later is left to start from"
            ports.log.warning("reserve.parentless", job=name, why=why)
            return False
        generation = generation or generations.begin(tx, name, record.attempts + 1, now)
        generations.pin(tx, generation, start.parent, newest.step, newest.key, now, "daemon")
    return True


def _candidates(tx: Connection, start: StartFrom) -> Iterator[Manifest]:
    """Yield what a job may start from, the best first: of a parent with gates the newest version that was accepted."""
    if start.at == "accepted" and jobs.get(tx, start.parent).spec.gates:
        accepted = versions.newest_accepted(tx, start.parent)
        saved = checkpoints.find(tx, accepted.checkpoint) if accepted else None
        found = [saved] if saved is not None and saved.state == "good" else []
    else:
        found = checkpoints.newest(tx, start.parent)
    yield from (one.manifest for one in found)


def parent_of(tx: Connection, record: JobRecord) -> Manifest | None:
    """Return what the next session of a job without a checkpoint of its own starts from; None for nothing."""
    return _parent(tx, record) if record.checkpoint is None else None


def _parent(tx: Connection, record: JobRecord) -> Manifest | None:
    generation = generations.current(tx, record.spec.name)
    if generation is None or generation.parent_key is None:
        return None
    saved = checkpoints.find(tx, generation.parent_key)
    return saved.manifest if saved is not None and saved.state == "good" else None
