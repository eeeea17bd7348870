"""Reports: gather the facts of a week from the database and make the report of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Literal, assert_never
from zoneinfo import ZoneInfo

from scheduler.core.job import Failed, Held
from scheduler.core.window import WEEK, Calendar, Window
from scheduler.report.document import document_of
from scheduler.report.html import html_of, inline
from scheduler.report.report import Need, QuotaNow, Report, ReportFacts, Speed, report_of
from scheduler.report.slack import slack_of
from scheduler.report.text import markdown_of, text_of
from scheduler.service.meters import meters
from scheduler.service.week_facts import facts_within
from scheduler.store import checkpoints, events, jobs, ledger, limits, outbox, plans, rates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from scheduler.core.pool import Pool
    from scheduler.report.picture import Picture
    from scheduler.store.engine import Database
    from scheduler.store.events import Event

Format = Literal["text", "html", "markdown", "json", "slack"]
_TRIES_SHOWN = 3  # a letter that failed so often is told
_LIFE = ("daemon.started", "daemon.reloaded", "daemon.reload_refused")
ALARMS = ("quota.orphan_suspected", "checkpoint.quarantined")
_LOOK_BACK_SECONDS = 32 * 86_400  # the longest quota window


@dataclass(frozen=True, slots=True)
class WeekOf:
    """A named span of time: ISO week ``2026-W47`` from Monday midnight to Monday midnight in a zone."""

    label: str
    start: int
    end: int


def last_week(now: int, zone: str) -> WeekOf:
    """Return the newest ISO week of ``zone`` that is over."""
    window = Calendar("week", zone).window_at(Calendar("week", zone).window_at(now).start - 1)
    return _named(window, zone)


def week_named(label: str, zone: str) -> WeekOf:
    """Return the week that ``2026-W47`` names. Raises ValueError."""
    year, mark, number = label.partition("-W")
    if not (mark and year.isdigit() and number.isdigit()):
        raise ValueError(f"{label!r} is no week")
    monday = date.fromisocalendar(int(year), int(number), 1)
    noon = datetime.combine(monday + timedelta(days=1), datetime.min.time(), ZoneInfo(zone))
    return _named(Calendar("week", zone).window_at(int(noon.timestamp())), zone)


def _named(window: Window, zone: str) -> WeekOf:
    year, number, _ = datetime.fromtimestamp(window.start, UTC).astimezone(ZoneInfo(zone)).isocalendar()
    return WeekOf(f"{year}-W{number:02d}", window.start, window.end)


def make_report(database: Database, pools: Mapping[str, Pool], week: WeekOf, zone: str, now: int) -> Report:
    """Return the report of a week. Raises StoreFailure."""
    with database.read() as tx:
        records = [record for record in checkpoints.everything(tx) if record.state != "quarantined"]
        entries = ledger.entries(tx, since=week.start - WEEK - _LOOK_BACK_SECONDS)
        queue = jobs.everything(tx)
        speeds = {
            at: Speed(rate.steps_per_second, rate.sigma, rate.setup_seconds)
            for at, rate in rates.everything(tx).items()
            if rate.samples
        }
        plan = plans.newest(tx)
        quotas = [
            QuotaNow(m.pool, m.quota, m.unit, m.limit, m.used, m.held, m.free, m.resets_at)
            for m in meters(tx, pools, now)
        ]
        found = needs(tx, week.start, now)
        since = jobs.first_added(tx)
        # Retention deletes files, not history: an expired checkpoint was useful all the same.
        manifests = [record.manifest for record in records if record.seen_at < week.end]
        this, before = (
            facts_within(tx, pools, start, start + length, 1.0, entries, manifests, queue)
            for start, length in ((week.start, week.end - week.start), (week.start - WEEK, WEEK))
        )
    return report_of(
        ReportFacts(
            label=week.label,
            zone=zone,
            now=now,
            week=this,
            before=before,
            seen_at={record.manifest.key: record.seen_at for record in records},
            deadlines={job.spec.name: job.spec.deadline for job in queue if job.spec.deadline is not None},
            speeds=speeds,
            plan=plan,
            quotas=quotas,
            needs=found,
            since=since,
        )
    )


def render(report: Report, form: Format, pictures: Sequence[Picture] = ()) -> str:
    """Return the report in one of its forms; all are made of the same words, JSON of the same data.

    ``pictures`` go into HTML.
    """
    match form:
        case "text":
            return text_of(document_of(report))
        case "markdown":
            return markdown_of(document_of(report))
        case "html":
            return html_of(document_of(report), inline(pictures))
        case "slack":
            return json.dumps({"blocks": slack_of(document_of(report))}, indent=2) + "\n"
        case "json":
            return json.dumps(asdict(report), indent=2) + "\n"
        case _:
            assert_never(form)


def needs(tx: Connection, since: int, now: int, alarms: Sequence[Event] | None = None) -> list[Need]:
    """Return what only a person can settle: what stands so now, and what happened after ``since``.

    ``alarms`` are the events of the kinds :data:`ALARMS`, where they were read already.
    """
    found = []
    for job in jobs.everything(tx, {"held", "failed"}):
        name = job.spec.name
        match job.state:
            case Held(by=by, why=why):
                found.append(Need("job held", name, f"by {by}: {why}", f"schedctl queue show {name}"))
            case Failed(why=why, message=message):
                found.append(Need("job failed", name, f"{why}: {message}", f"schedctl queue show {name}"))
            case _:
                pass
    closed = [(pool, why) for pool, (until, why) in sorted(limits.closures(tx).items()) if until is None]
    found += [Need("pool closed", pool, why, f"schedctl pools open {pool}") for pool, why in closed]
    found += [
        Need("letter not delivered", f"{kind} {period} by {channel}", f"{tries} tries: {why}", "schedctl doctor")
        for kind, period, channel, tries, why in outbox.stuck(tx, _TRIES_SHOWN)
    ]
    life = events.tail(tx, limit=1, kinds=_LIFE, subject="daemon")
    if life and life[0].kind == "daemon.reload_refused":
        why = str(life[0].data.get("why"))
        found.append(Need("settings not taken over", "daemon", why, "schedctl config check"))
    for event in events.tail(tx, kinds=ALARMS) if alarms is None else alarms:
        if since <= event.at < now:
            orphan = event.kind == "quota.orphan_suspected"
            unexplained = event.data.get("seconds", 0) / 3_600
            why = f"{unexplained:.2f} h that no run of ours explains" if orphan else str(event.data.get("why"))
            remedy = f"schedctl runs list --pool {event.subject}" if orphan else "schedctl checkpoints verify"
            found.append(
                Need("use by others suspected" if orphan else "checkpoint damaged", event.subject, why, remedy)
            )
    return found
