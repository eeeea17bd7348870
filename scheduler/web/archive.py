"""Archive: the weekly reports, made from the books when they are asked for, and as they were sent."""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException

from scheduler.notify.mail import WEEKLY
from scheduler.report.report import Report
from scheduler.store import jobs, outbox
from scheduler.views.weekly_report import make_report, week_named
from scheduler.web.shapes import ReportMessage, ReportRow, Reports
from scheduler.web.source import Source

LETTER_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; frame-ancestors 'none'; sandbox"
)
"""A message brings its styles and pictures with it, and may do nothing else."""
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
        week = week_named("this", source.zone, at)
        rows.append(ReportRow(week=week.label, start=week.start, end=week.end, sent=sent.get(week.label, {})))
        at = week.start - 1
    return Reports(reports=rows)


def report(source: Source, label: str) -> Report:
    """Return the report of the ISO week ``label``, such as 2026-W47, made again after ten minutes at most.

    Raises ValueError, StoreFailure.
    """
    week = week_named(label, source.zone)
    fresh_for = 1 if source.now < week.end + 3_600 else 10
    return source.kept(
        ("report", week.label),
        source.now // (60 * fresh_for),
        lambda: make_report(source.app.reading, source.pools, week, source.zone, source.now),
    )


def message(source: Source, week: str, channel: str) -> ReportMessage:
    """Return the words of a week's message to a channel. Raises HTTPException 404."""
    sent, body = _as_sent(source, week, channel)
    return ReportMessage(week=week, channel=channel, sent=sent, subject=body["subject"], text=body["text"])


def message_page(source: Source, week: str, channel: str) -> str | None:
    """Return the message as its reader saw it, its pictures within; None for one that was words alone.

    Raises HTTPException 404.
    """
    body = _as_sent(source, week, channel)[1]
    html = body.get("html")
    # Slack and Apprise have the same body, and show the words of it.
    if html is None or channel.partition("-")[0] != "email":
        return None
    for name, picture in body.get("pictures", {}).items():
        html = html.replace(f'"cid:{name}"', f'"data:image/png;base64,{picture}"')
    return str(html)


def _as_sent(source: Source, week: str, channel: str) -> tuple[int | None, dict[str, Any]]:
    with source.read() as tx:
        text = outbox.words(tx, WEEKLY, week, channel)
    if text is None:
        raise HTTPException(404, f"no report of {week} was written for {channel}")
    if not text[1]:
        raise HTTPException(
            404, f"the message of {week} is older than retention.messages in the settings, so its text was deleted"
        )
    return text
