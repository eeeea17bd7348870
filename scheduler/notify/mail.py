"""Mail: writes weekly reports and alerts to the outbox when they are due, and delivers them.

Down time and quiet hours delay messages, but no message is lost or duplicated.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jobs.nouns.window import Calendar, DailyHours
from scheduler.notify.deliver import Channel, deliver, redacted, share_among_recipients
from scheduler.notify.rules import (
    NotificationRule,
    alert_message,
    alerts_in,
    events_since,
    read_up_to,
    set_read,
    write_rule_messages,
)
from scheduler.report.document import document_of
from scheduler.report.picture import Picture, find_font, png_of
from scheduler.report.renderings import attached, html_of, slack_of, text_of
from scheduler.report.report import Report
from scheduler.service.outside.ports import Ports
from scheduler.store import due, events, outbox
from scheduler.store.errors import StoreFailure
from scheduler.views.chart_facts import pictures_of
from scheduler.views.needs import REPORT_AGAIN
from scheduler.views.weekly_report import make_report, week_named

WEEKLY, ALERTS = "weekly-report", "alerts"
_AGAIN_SECONDS = 3_600


@dataclass(frozen=True, slots=True)
class Mailing:
    """The channels and times of messages: a report at the start of each ``weekly``, alerts outside ``quiet`` hours."""

    channels: Mapping[str, Channel]
    zone: str
    weekly: Calendar
    alerts_every_seconds: int
    quiet: DailyHours | None
    rules: tuple[NotificationRule, ...] = ()
    webhooks: Mapping[str, Channel] = field(default_factory=dict)  # used by rules only

    @property
    def carriers(self) -> dict[str, Channel]:
        """All channels by name."""
        return {**self.channels, **self.webhooks}


def mail(ports: Ports, mailing: Mailing, now: int) -> None:
    """Write the messages that are due and deliver waiting ones, one channel after the other."""
    write(ports, mailing, now)
    for name, channel in mailing.carriers.items():
        deliver(ports, {name: channel}, now)


def post(ports: Ports, mailing: Mailing, apart: Callable[[Callable[[], object]], None], now: int) -> None:
    """Do the work of :func:`mail` in one thread per channel, run by ``apart``: a hanging server blocks only its own."""
    ports.calls.gather("letters", {"": partial(apart, partial(write, ports, mailing, now))})
    messages = {name: partial(deliver, ports, {name: channel}, now) for name, channel in mailing.carriers.items()}
    ports.calls.gather("mail", {name: partial(apart, work) for name, work in messages.items()})


def write(ports: Ports, mailing: Mailing, now: int) -> None:
    """Write due messages to the outbox, including all reports that were missed during a down time.

    If a report cannot be made, an event says so. It is retried hourly, and later reports wait for it.
    """
    write_rule_messages(ports, mailing.rules, now)
    if mailing.channels:
        _write_due(ports, mailing, now)
        share_among_recipients(ports, mailing.channels, now)


def _write_due(ports: Ports, mailing: Mailing, now: int) -> None:
    """Write due reports and alerts."""
    with ports.database.read() as tx:
        planned = due.next_due(tx)
        read = read_up_to(tx, planned, ALERTS)
    for name in (WEEKLY, ALERTS):
        if name not in planned:
            with ports.write() as tx:
                due.set_due(tx, name, mailing.weekly.window_at(now).end if name == WEEKLY else now)
                if name == ALERTS:
                    set_read(tx, ALERTS, read)
    due_at: int | None = planned.get(WEEKLY) if planned.get(REPORT_AGAIN, now) <= now else None
    while due_at is not None and due_at <= now:
        due_at = _write_report(ports, mailing, due_at, now)
    quiet = mailing.quiet is not None and any(now in hours for hours in mailing.quiet.windows(now, now + 1))
    if ALERTS in planned and now >= planned[ALERTS] + mailing.alerts_every_seconds and not quiet:
        with ports.database.read() as tx:
            recent = events_since(tx, planned[ALERTS])
            newest = events.newest_id(tx)
        news = alerts_in(recent, read)
        with ports.write() as tx:
            for channel in mailing.channels if news else ():
                body = redacted(alert_message(news), ports.redact)
                outbox.add(tx, ALERTS, str(planned[ALERTS]), channel, body, now)
            due.set_due(tx, ALERTS, now)
            set_read(tx, ALERTS, newest)


def _write_report(ports: Ports, mailing: Mailing, due_at: int, now: int) -> int | None:
    """Write the report due at ``due_at``; return when the next report is due, None if this one cannot be made."""
    week = week_named("last", mailing.zone, due_at)
    try:
        report = make_report(ports.database, ports.pools, week, mailing.zone, now)
        body = redacted(message_of(report, pictures_of(ports.database, ports.pools, report)), ports.redact)
    except StoreFailure:
        raise
    except Exception as error:
        # An error in a report must not stop training.
        ports.log.exception("report.failed", week=week.label)
        with ports.write() as tx:
            events.append(tx, "report.failed", week.label, now, why=ports.redact(f"{type(error).__name__}: {error}"))
            # The due time determines the week, so a retry must not change it: an hour later may be in the next week.
            due.set_due(tx, REPORT_AGAIN, now + _AGAIN_SECONDS)
        return None
    following = mailing.weekly.window_at(due_at).end
    with ports.write() as tx:
        for channel in mailing.channels:
            outbox.add(tx, WEEKLY, week.label, channel, body, now)
        due.set_due(tx, WEEKLY, following)
        due.forget(tx, REPORT_AGAIN)
    return following


def message_of(report: Report, pictures: Sequence[Picture] = ()) -> dict[str, Any]:
    """Return the message body of a report as plain JSON types; ``pictures`` are base64 PNGs by content ID."""
    document = document_of(report)
    drawn = _drawn(pictures)
    return {
        "subject": document.subject,
        "text": text_of(document),
        "html": html_of(document, attached([picture for picture in pictures if picture.name in drawn])),
        "blocks": slack_of(document),
        "pictures": drawn,
        "captions": {picture.name: picture.caption for picture in pictures if picture.name in drawn},
    }


def _drawn(pictures: Sequence[Picture]) -> dict[str, str]:
    """Return the pictures as base64 PNGs by name; empty without a font or without the extra ``report``."""
    font = find_font() if pictures else None
    if font is None:
        return {}
    try:
        return {picture.name: b64encode(png_of(picture.fixed, font)).decode() for picture in pictures if picture.fixed}
    except ImportError:
        return {}
