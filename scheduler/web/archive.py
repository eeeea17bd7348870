"""Archive: the weekly reports, each made from the books when it is asked for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from scheduler.service.alerts import WEEKLY
from scheduler.service.reports import make_report, week_named
from scheduler.store import jobs, outbox
from scheduler.web.shapes import ReportRow, Reports

if TYPE_CHECKING:
    from scheduler.report.report import Report
    from scheduler.web.source import Source

_WEEKS_MAX = 520


def reports(source: Source) -> Reports:
    """Return all weeks that are over since the first job was added, and the one that goes on, the newest first."""
    now = source.now
    with source.read() as tx:
        first = jobs.first_added(tx)
        sent = outbox.sent_by_period(tx, WEEKLY)
    rows: list[ReportRow] = []
    at = now
    while first is not None and len(rows) < _WEEKS_MAX and (not rows or rows[-1].start > first):
        year, number, _ = datetime.fromtimestamp(at, UTC).astimezone(ZoneInfo(source.zone)).isocalendar()
        week = week_named(f"{year}-W{number:02d}", source.zone)
        rows.append(ReportRow(week=week.label, start=week.start, end=week.end, sent=sent.get(week.label, {})))
        at = week.start - 1
    return Reports(reports=rows)


def report(source: Source, label: str) -> Report:
    """Return the report of the ISO week ``label``, such as 2026-W47, made anew after ten minutes at most.

    Raises ValueError, StoreFailure.
    """
    week = week_named(label, source.zone)
    fresh_for = 1 if source.now < week.end + 3_600 else 10
    return source.kept(
        ("report", week.label),
        source.now // (60 * fresh_for),
        lambda: make_report(source.app.reading, source.pools, week, source.zone, source.now),
    )
