"""Who is blamed for what: a wrong accelerator is the pool's fault, and one mistaken answer closes no pool for days."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from jobs.nouns.window import HOUR
from scheduler.core.run import WRONG_DEVICE
from scheduler.store import events, jobs
from tests.lab.simulation.faults import Violation

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from scheduler.store.events import Event
    from tests.lab.simulation.world import World

_ALL = 1_000_000
_KINDS = ("lane.failed", "lane.lost", "run.reserved", "pool.closed")
_RESTS_SECONDS = HOUR  # a pool is left alone for longer than this
_PATIENCE_SECONDS = 7 * HOUR  # and is asked again within this
_TOLD_WITHIN_SECONDS = 900  # from an answer to its closure, clocks that are wrong included


def check_blame(world: World, tx: Connection) -> None:
    """Raise Violation when a job or a pool has to bear what was not its fault. Holds when everything is over."""
    found = events.tail(tx, limit=_ALL, kinds=_KINDS)
    pool_of = {event.subject: event.data["pool"] for event in found if event.kind == "run.reserved"}
    own: Counter[str] = Counter()
    for event in found:
        if event.kind == "lane.lost":
            _check_trained(world, pool_of[event.subject], event)
        if event.kind == "lane.lost" or (event.kind == "lane.failed" and event.data["error_class"] != WRONG_DEVICE):
            own[event.data["job"]] += 1
        elif event.kind == "lane.failed":
            _check_rest(found, pool_of, event)
    for record in jobs.everything(tx):
        if record.failures > own[record.spec.name]:
            raise Violation("no job pays for a pool", f"{record.spec.name} counts {record.failures} failures")
    for place in world.places.values():
        for at in place.claimed:
            for event in found:
                until = event.data.get("until") if event.kind == "pool.closed" else None
                soon = abs(event.at - at) <= _TOLD_WITHIN_SECONDS
                if event.subject == place.name and soon and until is not None and until - event.at > _PATIENCE_SECONDS:
                    raise Violation("one mistake costs no days", f"{place.name} is closed for {until - event.at} s")


def _check_trained(world: World, pool: str, lost: Event) -> None:
    session = world.places[pool].sessions.get(lost.subject)
    lanes = session.lanes if session is not None else []
    # The command of a silent one has begun.
    if not any(lane.trains_since or lane.fate.sick for lane in lanes if lane.index == lost.data["lane"]):
        raise Violation("no job pays for a session that never trained", f"{lost.subject} counts against its job")


def _check_rest(found: list[Event], pool_of: dict[str, str], wrong: Event) -> None:
    pool = pool_of[wrong.subject]
    for event in found:
        if event.kind == "run.reserved" and event.data["pool"] == pool and event.id - wrong.id > 0:
            if event.at - wrong.at < _RESTS_SECONDS:
                raise Violation("a wrong accelerator closes its pool", f"{event.subject} follows {wrong.subject}")
            return
