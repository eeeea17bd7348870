"""Sessions that wait in their platform's queue: why, and until when. The latest report counts."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from sqlalchemy import Connection, select

from scheduler.core.run import Ended, Run, Wait
from scheduler.store import events
from scheduler.store.schema import runs

_WAITS, _BEGAN = "run.waits", "run.began"
_LIVE = select(runs.c.key).where(runs.c.state != "ended")


def record(tx: Connection, key: str, wait: Wait | None, now: int) -> None:
    """Store why a session waits, or (None) that it does not wait any more: events ``run.waits`` and ``run.began``."""
    if wait is None:
        events.append(tx, _BEGAN, key, now)
    else:
        events.append(tx, _WAITS, key, now, why=wait.why, starts_at=wait.starts_at, place=wait.place, since=wait.since)


def of(tx: Connection, keys: Collection[str]) -> dict[str, Wait]:
    """Return the waits of the given runs by launch key; runs that do not wait are absent."""
    reports = [(event.subject, event.data) for event in events.latest(tx, keys, _WAITS, _BEGAN) if event.kind == _WAITS]
    return {
        key: Wait(str(data.get("why", "")), data.get("starts_at"), data.get("place"), since=data.get("since"))
        for key, data in reports
    }


def attach(tx: Connection, records: Sequence[Run]) -> list[Run]:
    """Return the runs for display, with the reason for those that wait in their platform's queue."""
    live = [run.key for run in records if not isinstance(run.state, Ended)]
    waits = of(tx, live)
    return [replace(run, wait=waits[run.key]) if run.key in waits else run for run in records]


def count(tx: Connection) -> int:
    """Return the number of live sessions that wait in their platform's queue."""
    return len(of(tx, list(tx.execute(_LIVE).scalars())))
