"""Mail: writes the weekly report and alerts into the outbox when they are due, and has them delivered.

Down time and quiet hours make letters late, never lost, and never two of one period.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scheduler.clock import at_least
from scheduler.notify.alerts import alerts_in, events_since, letter_about
from scheduler.notify.deliver import deliver
from scheduler.notify.letter import letter_of, redacted
from scheduler.notify.rules import write_letters
from scheduler.store import due, events, outbox
from scheduler.store.errors import StoreFailure
from scheduler.views.chart_facts import pictures_of
from scheduler.views.needs import REPORT_AGAIN
from scheduler.views.weekly_report import last_week, make_report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.core.window import Calendar, DailyHours
    from scheduler.notify.deliver import Channel
    from scheduler.notify.rules import Rule
    from scheduler.service.outside.ports import Ports

WEEKLY, ALERTS = "weekly-report", "alerts"
_AGAIN_SECONDS = 3_600
_SETTLED_SECONDS, _SETTLED_WALL_SECONDS = 60, 2.0  # in which what has happened is committed


@dataclass(frozen=True, slots=True)
class Mailing:
    """When letters are written: the report as each week of ``weekly`` begins, alerts but in ``quiet`` hours."""

    channels: Mapping[str, Channel]
    zone: str
    weekly: Calendar
    alerts_every_seconds: int
    quiet: DailyHours | None
    rules: tuple[Rule, ...] = ()
    webhooks: Mapping[str, Channel] = field(default_factory=dict)  # for rules alone


def mail(ports: Ports, mailing: Mailing, now: int) -> None:
    """Write what is due, every report of a down time, and deliver what waits.

    A report that cannot be made is an event. It is tried again every hour, and those of later weeks wait for it.
    """
    write_letters(ports, mailing.rules, now)
    if mailing.channels:
        _write_due(ports, mailing, now)
    if mailing.channels or mailing.webhooks:
        deliver(ports, {**mailing.channels, **mailing.webhooks}, now)


def _write_due(ports: Ports, mailing: Mailing, now: int) -> None:
    """Write the reports and alerts that are due."""
    with ports.database.read() as tx:
        planned = due.next_due(tx)
    for name in (WEEKLY, ALERTS):
        if name not in planned:
            with ports.write() as tx:
                due.set_due(tx, name, mailing.weekly.window_at(now).end if name == WEEKLY else now)
    due_at: int | None = planned.get(WEEKLY) if planned.get(REPORT_AGAIN, now) <= now else None
    while due_at is not None and due_at <= now:
        due_at = _write_report(ports, mailing, due_at, now)
    if ALERTS in planned and now >= planned[ALERTS] + mailing.alerts_every_seconds and not _is_quiet(mailing, now):
        _write_alerts(ports, mailing, planned[ALERTS], now)


def _write_report(ports: Ports, mailing: Mailing, due_at: int, now: int) -> int | None:
    """Write the report that was due at ``due_at``; return when the next is due, None when this one cannot be made."""
    week = last_week(due_at, mailing.zone)
    try:
        report = make_report(ports.database, ports.pools, week, mailing.zone, now)
        body = redacted(letter_of(report, pictures_of(ports.database, ports.pools, report)), ports.redact)
    except StoreFailure:
        raise
    except Exception as error:
        # Whatever is wrong with a report, training goes on.
        ports.log.exception("report.failed", week=week.label)
        with ports.write() as tx:
            events.append(tx, "report.failed", week.label, now, why=ports.redact(f"{type(error).__name__}: {error}"))
            # What names the week stays as it is: moved on by an hour it may name the next one.
            due.set_due(tx, REPORT_AGAIN, now + _AGAIN_SECONDS)
        return None
    following = mailing.weekly.window_at(due_at).end
    with ports.write() as tx:
        for channel in mailing.channels:
            outbox.add(tx, WEEKLY, week.label, channel, body, now)
        due.set_due(tx, WEEKLY, following)
        due.forget(tx, REPORT_AGAIN)
    return following


def _write_alerts(ports: Ports, mailing: Mailing, since: int, now: int) -> None:
    with ports.database.read() as tx:
        found = events_since(tx, since)
    # What happened just now may not be committed yet; it is told next time.
    until = max(since, now - at_least(ports.clock, _SETTLED_SECONDS, _SETTLED_WALL_SECONDS))
    news = alerts_in(found, since, until)
    with ports.write() as tx:
        for channel in mailing.channels if news else ():
            outbox.add(tx, ALERTS, str(since), channel, redacted(letter_about(news), ports.redact), now)
        due.set_due(tx, ALERTS, until)


def _is_quiet(mailing: Mailing, now: int) -> bool:
    return mailing.quiet is not None and any(now in hours for hours in mailing.quiet.windows(now, now + 1))
