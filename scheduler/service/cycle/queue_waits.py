"""Queue waits: why sessions wait in their platforms' queues and when they are to start, kept for plans and people.

An event is written when a session comes to wait, for another reason, until another time, or no more. It brings a new
plan: sessions that would be launched now wait as long.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from scheduler.clock import at_least
from scheduler.core.run import Wait
from scheduler.store import queue_waits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.core.reconcile import Sighting
    from scheduler.core.run import Run
    from scheduler.service.facts.observation import Observation
    from scheduler.service.outside.ports import Ports

# An expected start moves with each pass of a scheduler. It is told anew once it moved by this or a tenth of the wait.
_TENTH = 10
_MOVED_SECONDS, _MOVED_WALL_SECONDS = 600, 2.0


class QueueWaits:
    """Notes the waits of live runs."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._told: dict[str, Wait] | None = None  # by launch key, as it was last written; None: not read yet

    def note(self, live: Sequence[Run], seen: Observation, now: int) -> None:
        """Write down what changed. Of a run that was not seen nothing did."""
        keys = {run.key for run in live}
        if self._told is None:
            with self._ports.database.read() as tx:
                self._told = queue_waits.of(tx, keys)
        told = {key: wait for key, wait in self._told.items() if key in keys}
        changed: dict[str, Wait | None] = {}
        for key, sighting in seen.sightings.items():
            if key not in keys:
                continue
            with seen.isolated(key):
                before, wait = told.get(key), _wait(sighting, told.get(key), now)
                if (wait is None) != (before is None) or (wait and before and self._differs(before, wait, now)):
                    changed[key] = wait
        if changed:
            with self._ports.write() as tx:
                for key, wait in changed.items():
                    queue_waits.note(tx, key, wait, now)
        self._told = {key: wait for key, wait in (told | changed).items() if wait is not None}

    def _differs(self, before: Wait, wait: Wait, now: int) -> bool:
        if before != replace(wait, starts_at=before.starts_at, place=before.place):
            return True
        if (before.starts_at is None) != (wait.starts_at is None):
            return True
        if _moved(before.place, wait.place) or before.starts_at is None or wait.starts_at is None:
            return _moved(before.place, wait.place)
        least = at_least(self._ports.clock, _MOVED_SECONDS, _MOVED_WALL_SECONDS)
        return abs(wait.starts_at - before.starts_at) > max(least, (wait.starts_at - now) // 10)


def _moved(before: int | None, place: int | None) -> bool:
    """Tell whether a place in a queue is worth telling again: among the first each is, further back a tenth."""
    if before is None or place is None:
        return before != place
    return abs(place - before) > min(before, place) // _TENTH


def _wait(sighting: Sighting, before: Wait | None, now: int) -> Wait | None:
    """Return why a session waits; an estimate that is not told this once is the one before."""
    if sighting.state != "queued" or sighting.wait is None:
        return None
    known = before.starts_at if before else None
    since = now if before is None or before.since is None else before.since
    told = sighting.wait
    return Wait(told.why, known if told.starts_at is None else told.starts_at, told.place, since=since)
