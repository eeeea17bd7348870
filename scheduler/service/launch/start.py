"""Start: from whose weights a job begins. Chosen at its first launch, kept until it has a checkpoint of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.core.reasons import ParentUnusable
from scheduler.service.facts.parents import choose_parent, pinned_parent
from scheduler.store import generations

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from jobs.payload.store.manifest import Manifest
    from scheduler.service.outside.ports import Ports
    from scheduler.store.jobs import JobRecord


def pin_parent(ports: Ports, tx: Connection, record: JobRecord, now: int) -> bool:
    """Choose the checkpoint that a job starts from, where it starts from another's; return whether it can be launched.

    One that was chosen before stays, unless it turned out to be damaged since. None is given out while it is verified.
    """
    start = record.spec.start_from
    if start is None or record.checkpoint is not None:
        return True
    chosen = choose_parent(tx, record, start)
    name = record.spec.name
    if isinstance(chosen, ParentUnusable):
        ports.log.warning("reserve.parentless", job=name, why=chosen.sentence())
        return False
    if chosen == pinned_parent(tx, record):
        return True
    generation = generations.current(tx, name) or generations.begin(tx, name, record.attempts + 1, now)
    generations.pin(tx, generation, start.parent, chosen.step, chosen.key, now, "daemon")
    return True


def parent_of(tx: Connection, record: JobRecord) -> Manifest | None:
    """Return what the next session of a job without a checkpoint of its own starts from; None for nothing."""
    return pinned_parent(tx, record) if record.checkpoint is None else None
