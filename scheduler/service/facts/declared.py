"""Declared ends: a person looked, and says that a session is over of which its platform tells nothing."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection

from scheduler.core.run import Run
from scheduler.store import events

DECLARED = "run.declared_lost"


def declare(tx: Connection, key: str, ended: int, proof: str, now: int, by: str) -> None:
    """Record that a person says that a run is over, charged until ``ended`` (UTC seconds); event."""
    events.append(tx, DECLARED, key, now, by, ended=ended, why=proof)


def declared(tx: Connection, live: Iterable[Run]) -> dict[str, tuple[int, str]]:
    """Return until when live runs are charged that a person said are over, and why, by launch key."""
    found = {}
    for run in live:
        for event in events.tail(tx, limit=1, kinds=[DECLARED], subject=run.key):
            found[run.key] = int(event.data["ended"]), f"lost, says {event.by}: {event.data['why']}"
    return found
