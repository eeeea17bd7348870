"""Alerts: what of the event log is told at once. All of one time go into one letter.

The same alert about the same subject is told once in six hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from scheduler.service.faults.places import NEVER_BEGAN, WRONG_DEVICE
from scheduler.store import events
from scheduler.store.events import Event
from scheduler.views.needs import RAISED

_TOLD_ONCE_SECONDS = 6 * 3_600
_EVENTS_AT_ONCE = 500
_LINES_MAX = 20
_WHY_MAX = 200
_SURPRISE_SECONDS = 600
_WORDS = {
    "quota.orphan_suspected": "the account was used by something that is not ours",
    WRONG_DEVICE: "it gave another accelerator than it promises and is closed for a while; no job is blamed",
    NEVER_BEGAN: "its session ended before the command had begun, and it is closed for a while; no job is blamed",
    "session.offered": "a session waits for a person to take it",
    "session.late": "a session ran after it had been given up, and what it was billed is booked",
    "session.lost": "what a session left did not come home",
    "session.orphan": "a session of ours runs that no run names, and its time is not settled",
    "quota.adjusted": "the platform counts otherwise than our books",
    "job.stalled": "its session burnt hours for nothing and was ended",
    "job.crashes": "two sessions in a row failed within a minute of their start",
    "job.fail": "the job failed",
    "job.park": "the job is held until a person releases it",
    "checkpoint.quarantined": "a checkpoint is damaged",
    "daemon.started": "the daemon started",
    "report.failed": "the weekly report could not be made",
    RAISED: "needs a person",
}
_COMMANDS = {
    "quota.orphan_suspected": "schedctl runs list --pool {}",
    WRONG_DEVICE: "schedctl pools open {}",
    "session.offered": "schedctl handover take {}",
    "session.late": "schedctl runs show {}",
    "session.lost": "schedctl runs show {}",
    "session.orphan": "schedctl doctor",
    "quota.adjusted": "schedctl quota",
    "job.stalled": "schedctl queue show {}",
    "job.fail": "schedctl queue show {}",
    "job.park": "schedctl queue show {}",
    "checkpoint.quarantined": "schedctl checkpoints verify",
    "daemon.started": "schedctl status",
    "report.failed": "schedctl report weekly",
}
# What rules tell besides; other kinds of events are named as they are.
_ALSO = {"job.finish": "the job is done", "run.accept": "its session began", "run.end": "its session ended"}
# What an event tells that a need tells as well.
_TELLS = {
    WRONG_DEVICE: "wrong accelerator",
    "job.fail": "job failed",
    "job.park": "job held",
    "quota.orphan_suspected": "use by others suspected",
    "checkpoint.quarantined": "checkpoint damaged",
    "session.orphan": "session without a run",
    "session.offered": "session offered",
    "report.failed": "report not made",
}


def events_since(tx: Connection, since: int) -> list[Event]:
    """Return the events that alerts since ``since`` are made of; in a bad night they are many."""
    instant = since - _TOLD_ONCE_SECONDS
    limit = _EVENTS_AT_ONCE
    while True:
        found = events.tail(tx, limit=limit, kinds=_WORDS)
        if len(found) < limit or found[0].at < instant:
            return found
        limit *= 4


def alerts_in(found: Sequence[Event], read: int) -> list[Event]:
    """Return the events after the one ``read`` to tell, but for those told of the same subject in the six hours before.

    That something needs a person is told where nothing else was told of it: a job that failed is one line.
    """
    told: dict[tuple[str, str], int] = {}
    news = []
    happened = {(_TELLS.get(event.kind), event.subject) for event in found}
    for event in found:
        if event.kind == "quota.adjusted" and abs(event.data.get("seconds", 0)) < _SURPRISE_SECONDS:
            continue
        if event.kind == RAISED and (event.data.get("what"), event.subject) in happened:
            continue
        at = event.kind + str(event.data.get("what", "")), event.subject
        if event.at - told.get(at, -_TOLD_ONCE_SECONDS) >= _TOLD_ONCE_SECONDS:
            told[at] = event.at
            if event.id > read:
                news.append(event)
    return news


def letter_about(news: Sequence[Event]) -> dict[str, Any]:
    """Return one letter about all of ``news``, one at least: what happened to whom, and why where that is known."""
    text = "\n".join([*lines_about(news), "", "See: schedctl status", ""])
    return {"subject": f"Training: {_line(news[0])}", "text": text}


def lines_about(news: Sequence[Event]) -> list[str]:
    """Return a line for each event of any kind, and how many more there are where they are too many."""
    lines = [_line(event) + (f": {why}" if (why := _why(event)) else "") for event in news[:_LINES_MAX]]
    return lines if len(news) <= _LINES_MAX else [*lines, f"and {len(news) - _LINES_MAX} more"]


def _line(event: Event) -> str:
    words = (
        str(event.data.get("what"))
        if event.kind == RAISED
        else _WORDS.get(event.kind) or _ALSO.get(event.kind, event.kind)
    )
    return f"{_printable(event.subject)}: {_printable(words)}"


def _why(event: Event) -> str:
    """Return what the event tells of its cause, which is a platform's or a program's own words in places."""
    after = event.data.get("to")
    told = event.data.get("why") or (after.get("message") or after.get("why") if isinstance(after, dict) else "")
    if not told and "seconds" in event.data:
        told = f"{event.data['seconds'] / 3_600:+.2f} h"
    said = _printable(str(told or ""))[:_WHY_MAX].strip()
    command = (
        str(event.data.get("next")) if event.kind == RAISED else _COMMANDS.get(event.kind, "").format(event.subject)
    )
    return f"{said}{'. ' * bool(said)}Begin with: {_printable(command)}" if command else said


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() and c not in "<>&" else " " for c in text)
