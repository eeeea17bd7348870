"""Mail: writes the weekly report and alerts into the outbox when they are due, and has them delivered.

Alerts come from the event log. All of one time go into one letter; the same alert about the same subject is told once
in six hours. Down time and quiet hours make letters late, never lost, and never two of one period.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scheduler.service.deadlines import AT_RISK, watch_deadlines
from scheduler.service.deliver import deliver
from scheduler.service.gates import GATE_FAILED, watch_gates
from scheduler.service.letter import letter_of
from scheduler.service.pictures import pictures_of
from scheduler.service.reports import last_week, make_report
from scheduler.store import due, events, outbox
from scheduler.store.errors import StoreFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from scheduler.core.window import Calendar, DailyHours
    from scheduler.service.deliver import Channel
    from scheduler.service.ports import Ports
    from scheduler.store.events import Event

WEEKLY, ALERTS = "weekly-report", "alerts"
_AGAIN = "weekly-report-again"  # there only after a report could not be made, until it is
_AGAIN_SECONDS = 3_600
_TOLD_ONCE_SECONDS = 6 * 3_600
_SETTLED_SECONDS = 60
_EVENTS_AT_ONCE = 500
_LINES_MAX = 20
_WHY_MAX = 200
_SURPRISE_SECONDS = 600
_WORDS = {
    "quota.orphan_suspected": "the account was used by something that is not ours",
    "session.offered": "a session waits for a person to take it",
    "session.late": "a session ran after it had been given up, and what it was billed is booked",
    "session.stray": "a session of ours runs that no run names, and its time is not settled",
    "quota.adjusted": "the platform counts otherwise than our books",
    "job.fail": "the job failed",
    "job.park": "the job is held until a person releases it",
    AT_RISK: "its deadline may be missed",
    GATE_FAILED: "its gate cannot open: the job it waits for failed or was cancelled",
    "checkpoint.quarantined": "a checkpoint is damaged",
    "daemon.started": "the daemon started",
    "report.failed": "the weekly report could not be made",
}


@dataclass(frozen=True, slots=True)
class Mailing:
    """When letters are written: the report as each week of ``weekly`` begins, alerts but in ``quiet`` hours."""

    channels: Mapping[str, Channel]
    zone: str
    weekly: Calendar
    alerts_every_seconds: int
    quiet: DailyHours | None


def mail(ports: Ports, mailing: Mailing, now: int) -> None:
    """Write what is due, every report of a down time, and deliver what waits.

    A report that cannot be made is an event. It is tried again every hour, and those of later weeks wait for it.
    """
    if not mailing.channels:
        return
    with ports.database.read() as tx:
        planned = due.next_due(tx)
    for name in (WEEKLY, ALERTS):
        if name not in planned:
            with ports.write() as tx:
                due.set_due(tx, name, mailing.weekly.window_at(now).end if name == WEEKLY else now)
    due_at: int | None = planned.get(WEEKLY) if planned.get(_AGAIN, now) <= now else None
    while due_at is not None and due_at <= now:
        due_at = _write_report(ports, mailing, due_at, now)
    if ALERTS in planned and now >= planned[ALERTS] + mailing.alerts_every_seconds and not _is_quiet(mailing, now):
        watch_deadlines(ports, now)
        watch_gates(ports, now)
        _write_alerts(ports, mailing, planned[ALERTS], now)
    deliver(ports, mailing.channels, now)


def _write_report(ports: Ports, mailing: Mailing, due_at: int, now: int) -> int | None:
    """Write the report that was due at ``due_at``; return when the next is due, None when this one cannot be made."""
    week = last_week(due_at, mailing.zone)
    try:
        report = make_report(ports.database, ports.pools, week, mailing.zone, now)
        body = letter_of(report, pictures_of(ports.database, ports.pools, report))
    except StoreFailure:
        raise
    except Exception as error:
        # Whatever is wrong with a report, training goes on.
        ports.log.exception("report.failed", week=week.label)
        with ports.write() as tx:
            events.append(tx, "report.failed", week.label, now, why=f"{type(error).__name__}: {error}")
            # What names the week stays as it is: moved on by an hour it may name the next one.
            due.set_due(tx, _AGAIN, now + _AGAIN_SECONDS)
        return None
    following = mailing.weekly.window_at(due_at).end
    with ports.write() as tx:
        for channel in mailing.channels:
            outbox.add(tx, WEEKLY, week.label, channel, body, now)
        due.set_due(tx, WEEKLY, following)
        due.forget(tx, _AGAIN)
    return following


def _write_alerts(ports: Ports, mailing: Mailing, since: int, now: int) -> None:
    with ports.database.read() as tx:
        found = _since(tx, since - _TOLD_ONCE_SECONDS)
    # What happened just now may not be committed yet; it is told next time.
    until = max(since, now - _SETTLED_SECONDS)
    news = alerts_in(found, since, until)
    with ports.write() as tx:
        for channel in mailing.channels if news else ():
            outbox.add(tx, ALERTS, str(since), channel, letter_about(news), now)
        due.set_due(tx, ALERTS, until)


def _since(tx: Connection, instant: int) -> list[Event]:
    """Return all events to tell since ``instant``, and some before: in a bad night they are many."""
    limit = _EVENTS_AT_ONCE
    while True:
        found = events.tail(tx, limit=limit, kinds=_WORDS)
        if len(found) < limit or found[0].at < instant:
            return found
        limit *= 4


def alerts_in(found: Sequence[Event], since: int, until: int) -> list[Event]:
    """Return the events of [since, until) to tell, without those told of the same subject in the six hours before."""
    told: dict[tuple[str, str], int] = {}
    news = []
    for event in found:
        if event.kind == "quota.adjusted" and abs(event.data.get("seconds", 0)) < _SURPRISE_SECONDS:
            continue
        at = event.kind, event.subject
        if event.at < until and event.at - told.get(at, -_TOLD_ONCE_SECONDS) >= _TOLD_ONCE_SECONDS:
            told[at] = event.at
            if event.at >= since:
                news.append(event)
    return news


def letter_about(news: Sequence[Event]) -> dict[str, Any]:
    """Return one letter about all of ``news``, one at least: what happened to whom, and why where that is known."""
    lines = [_line(event) + (f": {why}" if (why := _why(event)) else "") for event in news[:_LINES_MAX]]
    if len(news) > _LINES_MAX:
        lines.append(f"and {len(news) - _LINES_MAX} more")
    return {"subject": f"Training: {_line(news[0])}", "text": "\n".join([*lines, "", "See: schedctl status", ""])}


def _line(event: Event) -> str:
    return f"{_printable(event.subject)}: {_WORDS[event.kind]}"


def _why(event: Event) -> str:
    """Return what the event tells of its cause, which is a platform's or a program's own words in places."""
    after = event.data.get("to")
    told = event.data.get("why") or (after.get("message") or after.get("why") if isinstance(after, dict) else "")
    if not told and "seconds" in event.data:
        told = f"{event.data['seconds'] / 3_600:+.2f} h"
    return _printable(str(told or ""))[:_WHY_MAX].strip()


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() and c not in "<>&" else " " for c in text)


def _is_quiet(mailing: Mailing, now: int) -> bool:
    return mailing.quiet is not None and any(now in hours for hours in mailing.quiet.windows(now, now + 1))
