"""Verbs for weekly reports: a report is computed from the ledger on request; a sent message is read unchanged."""

from typing import Any

from jobs.problem import NotFound
from scheduler.notify.mail import WEEKLY
from scheduler.report.report import Report
from scheduler.store import jobs, outbox
from scheduler.verbs.arguments import BadRequest, Channel, Week
from scheduler.verbs.shapes import ReportMessage, ReportRow
from scheduler.verbs.source import Source
from scheduler.verbs.surface import verb
from scheduler.views.weekly_report import WeekOf, make_report, week_named

LETTER_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; frame-ancestors 'none'; sandbox"
)
"""Content-Security-Policy of a message shown as a page: only its own styles and embedded pictures are allowed."""
_WEEKS_MAX = 520  # ten years


@verb("report.list", "/reports", key="reports")
def reports(source: Source) -> list[ReportRow]:
    """All weeks that are over since the first job was added, and the one that goes on, the newest first."""
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
    return rows


@verb("report.weekly", "/reports/{week}", slow=True)
def report(source: Source, week: Week = "last") -> Report:
    """What a week's hours became, as ``schedctl report weekly --json`` has it."""
    # The report is cached for a minute; from an hour after the end of its week, for ten minutes.
    span = _week(source, week)
    minutes = 1 if source.now < span.end + 3_600 else 10
    return source.kept(
        ("report", span.label),
        source.now // (60 * minutes),
        lambda: make_report(source.app.reading, source.pools, span, source.zone, source.now),
    )


@verb("report.message", "/reports/{week}/letters/{channel}")
def message(source: Source, week: Week, channel: Channel) -> ReportMessage:
    """A week's report as sent to a channel."""
    label = _week(source, week).label
    sent, body = _as_sent(source, label, channel)
    return ReportMessage(week=label, channel=channel, sent=sent, subject=body["subject"], text=body["text"])


def message_page(source: Source, week: str, channel: str) -> str | None:
    """Return the message as HTML with pictures embedded; None if it is plain text. Raises BadRequest, NotFound."""
    body = _as_sent(source, _week(source, week).label, channel)[1]
    html = body.get("html")
    # Slack and Apprise are sent the same body, but show only its text.
    if html is None or channel.partition("-")[0] != "email":
        return None
    for name, picture in body.get("pictures", {}).items():
        html = html.replace(f'"cid:{name}"', f'"data:image/png;base64,{picture}"')
    return str(html)


def _week(source: Source, label: str) -> WeekOf:
    """Return the week that ``label`` names: ``2026-W47``, ``this`` or ``last``. Raises BadRequest."""
    try:
        week = week_named(label, source.zone, source.now)
        if not 1970 <= int(week.label[:4]) <= 9_000:  # the weeks before and after it must be valid dates too
            raise ValueError(label)
    except (ValueError, OverflowError):
        raise BadRequest(f"there is no week {label}", "Write it like 2026-W47, this or last") from None
    return week


def _as_sent(source: Source, week: str, channel: str) -> tuple[int | None, dict[str, Any]]:
    with source.read() as tx:
        text = outbox.find(tx, WEEKLY, week, channel)
    if text is None:
        raise NotFound("not found", f"no report of {week} was written for {channel}")
    if not text[1]:
        raise NotFound(
            "not found",
            f"the message of {week} is older than retention.messages in the settings, so its text was deleted",
        )
    return text
