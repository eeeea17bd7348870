"""Arrivals: when jobs of each kind came into the queue, as the planner learns from it what comes next.

A kind is a job with its generations, or all jobs of a sweep. Of a job that a person holds or cancelled, and of one
that failed, no next one is expected.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from jobs.cycle import coming
from jobs.spec import EVALUATE
from scheduler.core.job import Active, Done, Queued
from scheduler.core.snapshot import Arrivals
from scheduler.core.window import DAY
from scheduler.service.faults.isolation import isolated
from scheduler.store import generations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from jobs.spec import JobSpec
    from scheduler.core.snapshot import JobView
    from scheduler.store.jobs import JobRecord


def kind_of(spec: JobSpec) -> str:
    """Return what jobs like this one are called together."""
    return spec.sweep or spec.name


def arrivals(
    tx: Connection, records: Sequence[JobRecord], as_new: Callable[[JobRecord], JobView], now: int, until: int
) -> tuple[Arrivals, ...]:
    """Return the history of every kind that came on more than one day, or whose next one its user expects.

    ``as_new`` returns a job as the planner would see it with nothing trained; of one for which it fails none is made.
    """
    begun = generations.beginnings(tx)
    kinds: dict[str, list[tuple[int, JobRecord]]] = {}
    for record in records:
        spec = record.spec
        if spec.role != EVALUATE:
            instants = (record.created_at, *(at for at, _ in begun.get(spec.name, ())))
            kinds.setdefault(kind_of(spec), []).extend((instant, record) for instant in instants)
    found = []
    for kind, came in sorted(kinds.items()):
        came.sort(key=lambda one: (one[0], one[1].spec.name))
        newest = came[-1][1]
        expects = newest.spec.expects
        again = came[-1][0] - came[0][0] >= DAY
        if not isinstance(newest.state, Queued | Active | Done) or not (expects or again):
            continue
        said = coming(expects, came[-1][0], now, until) if expects else ()
        instants = tuple(instant for instant, _ in came)
        with isolated({}, newest.spec.name):  # gather has told why
            found.append(Arrivals(kind, instants, replace(as_new(newest), kind=kind, blocked=None), said))
    return tuple(found)
