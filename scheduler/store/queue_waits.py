"""Queue waits: which sessions wait in their platform's queue, why, and until when. The latest report counts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from sqlalchemy import Connection, select

from scheduler.core.run import Ended, Run, Wait
from scheduler.store import events
from scheduler.store.schema import runs

_WAITS, _BEGAN = "run.waits", "run.began"
_LIVE = select(runs.c.key).where(runs.c.state != "ended")


def note(tx: Connection, key: str, wait: Wait | None, now: int) -> None:
    """Write down why a session waits, or (None) that it waits no more: events ``run.waits`` and ``run.began``."""
    if wait is None:
        events.append(tx, _BEGAN, key, now)
    else:
        events.append(tx, _WAITS, key, now, why=wait.why, starts_at=wait.starts_at, place=wait.place, since=wait.since)


def of(tx: Connection, keys: Collection[str]) -> dict[str, Wait]:
    """Return the waits of those of the given runs that wait, by launch key."""
    reports = [(event.subject, event.data) for event in events.latest(tx, keys, _WAITS, _BEGAN) if event.kind == _WAITS]
    return {
        key: Wait(str(data.get("why", "")), data.get("starts_at"), data.get("place"), since=data.get("since"))
        for key, data in reports
    }


def attach(tx: Connection, records: Sequence[Run]) -> list[Run]:
    """Return the runs, each live one with why its session waits in its platform's queue, for people to see."""
    live = [run.key for run in records if not isinstance(run.state, Ended)]
    waits = of(tx, live)
    return [replace(run, wait=waits[run.key]) if run.key in waits else run for run in records]


def count(tx: Connection) -> int:
    """Return how many live sessions wait in their platform's queue."""
    return len(of(tx, list(tx.execute(_LIVE).scalars())))
