"""Gates: notices jobs that wait for one that failed or was cancelled before it had come far enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.store import events, jobs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.service.ports import Ports
    from scheduler.store.jobs import JobRecord

GATE_FAILED, GATE_HOPEFUL = "gate.failed", "gate.hopeful"


def watch_gates(ports: Ports, now: int) -> None:
    """Write an event for each job whose gate can no longer open by itself, or can again, since the last look."""
    with ports.database.read() as tx:
        stopped = {job.spec.name: job for job in jobs.everything(tx, {"failed", "cancelled"})}
        told = {event.subject: event.kind for event in events.tail(tx, limit=500, kinds=(GATE_FAILED, GATE_HOPEFUL))}
        if not stopped and GATE_FAILED not in told.values():
            return
        changes = []
        for job in jobs.everything(tx, {"queued", "held"}):
            shut = _is_shut(job, stopped)
            if shut != (told.get(job.spec.name) == GATE_FAILED):
                changes.append((job, shut))
    with ports.write() as tx:
        for job, shut in changes:
            parent = job.spec.gate.parent if job.spec.gate else None
            events.append(tx, GATE_FAILED if shut else GATE_HOPEFUL, job.spec.name, now, parent=parent)


def _is_shut(job: JobRecord, stopped: Mapping[str, JobRecord]) -> bool:
    gate = job.spec.gate
    parent = stopped.get(gate.parent) if gate is not None else None
    if gate is None or parent is None:
        return False
    return parent.done_step < gate.fraction * parent.spec.target_step
