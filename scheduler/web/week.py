"""Week: the sessions of seven days or of one, past, running and planned."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from scheduler.core.window import DAY, Window
from scheduler.report.timeline import Session, Timeline
from scheduler.views import chart_facts
from scheduler.web.shapes import SessionRow, Span
from scheduler.web.source import Source

DAYS = 7
SETTLED_SECONDS = 7 * DAY
"""Sessions that were planned to end longer ago than that have ended and are settled."""
_DAYS_BEFORE, _HOURS_BEFORE = 3, 8


def span_around(now: int, zone: str) -> Window:
    """Return seven local days with today as the fourth."""
    return span_from(datetime.fromtimestamp(now, UTC).astimezone(ZoneInfo(zone)).date() - timedelta(_DAYS_BEFORE), zone)


def hours_around(now: int) -> Window:
    """Return 24 hours, the last eight of them and the next sixteen, from a full hour on."""
    start = now // 3_600 * 3_600 - _HOURS_BEFORE * 3_600
    return Window(start, start + DAY)


def span_from(day: date, zone: str, days: int = DAYS) -> Window:
    """Return ``days`` local days from the midnight of ``day`` on. Raises OverflowError at the end of time."""
    first, last = (
        datetime(at.year, at.month, at.day, tzinfo=ZoneInfo(zone)) for at in (day, day + timedelta(days=days))
    )
    return Window(int(first.timestamp()), int(last.timestamp()))


def timeline(source: Source, tx: Connection, span: Window, now: int) -> Timeline:
    """Return what the picture of the week shows."""
    return chart_facts.timeline(tx, source.pools, source.plan(tx), span, now)


def span(source: Source, day: date | None) -> Span:
    """Return the sessions of seven days from ``day`` on, or of those around now."""
    now = source.now
    window = span_around(now, source.zone) if day is None else span_from(day, source.zone)
    with source.read() as tx:
        found = timeline(source, tx, window, now)
    return Span(start=window.start, end=window.end, now=now, sessions=[session_row(each) for each in found.sessions])


def session_row(session: Session) -> SessionRow:
    """Return a session as the API shows it."""
    return SessionRow(
        pool=session.pool,
        start=session.start,
        end=session.ends,
        phase=session.phase,
        key=session.key,
        jobs=[planned_lane.job for planned_lane in session.lanes],
        outcome=session.outcome,
    )
