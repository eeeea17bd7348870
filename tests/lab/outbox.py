"""What tests of messages share: ports with a log of their own, and events that happen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jobs.payload.redact import Redactor
from scheduler.clock import system_clock
from scheduler.store import events
from scheduler.store.engine import Database

NOW = 1_795_000_000


class Log:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def __getattr__(self, level: str) -> Any:
        return lambda event, **fields: self.said.append(f"{level} {event} {fields}")


def ports_on(database: Database, *secrets: str) -> Any:
    return SimpleNamespace(
        database=database,
        epoch=0,
        write=database.write,
        log=Log(),
        pools={},
        clock=system_clock(),
        redact=Redactor(secrets),
    )


def happen(database: Database, kind: str, subject: str, at: int, **data: Any) -> int:
    with database.write() as tx:
        return events.append(tx, kind, subject, at, **data)
