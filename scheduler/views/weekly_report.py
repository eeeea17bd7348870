"""The weekly report: read the facts of a week from the database, make the report, and render it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal, assert_never
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from jobs.nouns.pool import Pool
from jobs.nouns.window import WEEK, Calendar, Window
from jobs.payload.bounds import digits
from jobs.payload.store.manifest import Manifest
from scheduler.core.job import Done, Failed, Held
from scheduler.core.ledger import LedgerEntry
from scheduler.core.version import version_name
from scheduler.core.why import why
from scheduler.report.document import document_of
from scheduler.report.facts import JobFacts, WeekFacts
from scheduler.report.picture import Picture
from scheduler.report.renderings import html_of, inline, markdown_of, slack_of, text_of
from scheduler.report.report import JobSpeed, JudgedVersion, Report, ReportFacts, gpus_of, report_of
from scheduler.service.quota.usage import meters
from scheduler.store import (
    checkpoints,
    evaluations,
    generations,
    jobs,
    ledger,
    limits,
    plans,
    queue_waits,
    rates,
    runs,
    series,
    versions,
)
from scheduler.store.engine import Database
from scheduler.store.evaluations import StoredVerdict
from scheduler.store.jobs import JobRecord
from scheduler.views.needs import needs

Format = Literal["text", "html", "markdown", "json", "slack"]
_LOOK_BACK_SECONDS = 32 * 86_400  # the longest quota window


@dataclass(frozen=True, slots=True)
class WeekOf:
    """An ISO week such as ``2026-W47``, from Monday midnight to Monday midnight in a time zone (UTC seconds)."""

    label: str
    start: int
    end: int


def week_named(label: str, zone: str, now: int = 0) -> WeekOf:
    """Return the ISO week named ``2026-W47``, "this" or "last", in ``zone`` at ``now``. Raises ValueError."""
    calendar = Calendar("week", zone)
    if label in {"this", "last"}:
        this = calendar.window_at(now)
        return _named(this if label == "this" else calendar.window_at(this.start - 1), zone)
    year, number = (digits(part, date.max.year) for part in (label.partition("-W")[0], label.partition("-W")[2]))
    if year is None or number is None:
        raise ValueError(f"{label!r} is not an ISO week such as 2026-W47")
    monday = date.fromisocalendar(year, number, 1)
    noon = datetime.combine(monday + timedelta(days=1), datetime.min.time(), ZoneInfo(zone))
    return _named(calendar.window_at(int(noon.timestamp())), zone)


def _named(window: Window, zone: str) -> WeekOf:
    year, number, _ = datetime.fromtimestamp(window.start, UTC).astimezone(ZoneInfo(zone)).isocalendar()
    return WeekOf(f"{year}-W{number:02d}", window.start, window.end)


def make_report(database: Database, pools: Mapping[str, Pool], week: WeekOf, zone: str, now: int) -> Report:
    """Return the report of a week; the report of the current week ends at ``now``. Raises StoreFailure."""
    last = Calendar("week", zone).window_at(week.start - 1)
    with database.read() as tx:
        records = checkpoints.saved(tx)  # expired ones as well: retention deletes files, not history
        entries = ledger.entries(tx, since=week.start - WEEK - _LOOK_BACK_SECONDS)
        queue = jobs.everything(tx)
        speeds = {
            at: JobSpeed(rate.steps_per_second, rate.sigma, rate.setup_seconds)
            for at, rate in rates.everything(tx).items()
            if rate.samples
        }
        plan = plans.newest(tx)
        quotas = meters(tx, pools, now)
        open_needs = needs(tx, pools, week.start, now, read_plan=lambda _: plan)
        since = jobs.first_added(tx)
        judged = [_judged(tx, verdict) for verdict in evaluations.verdicts_between(tx, week.start, week.end)]

        def facts_at_end(start: int, end: int) -> WeekFacts:
            saved = [manifest for manifest, seen_at in records if seen_at < end]
            booked = [entry for entry in entries if entry.at < end]
            return facts_within(tx, pools, start, end, 1.0, booked, saved, queue)

        so_far = week.start < now < week.end
        end = now if so_far else week.end
        gpus = gpus_of(series.gpu_metrics(tx, week.start, end), pools, [record.spec for record in queue])
        this, before = facts_at_end(week.start, end), facts_at_end(last.start, last.end)
    return report_of(
        ReportFacts(
            label=week.label,
            zone=zone,
            now=now,
            week=this,
            before=before,
            seen_at={manifest.key: seen_at for manifest, seen_at in records},
            deadlines={job.spec.name: job.spec.deadline for job in queue if job.spec.deadline is not None},
            speeds=speeds,
            plan=plan,
            quotas=quotas,
            needs=open_needs,
            since=since,
            so_far=so_far,
            judged=judged,
            gpus=gpus,
            later=[entry for entry in entries if entry.at >= end],
        )
    )


def _judged(tx: Connection, verdict: StoredVerdict) -> JudgedVersion:
    promoted = versions.in_force(tx, verdict.model)
    name = version_name(verdict.model, verdict.number)
    reason = str(verdict.evidence.get("reason", ""))
    return JudgedVersion(name, verdict.verdict, reason, promoted is not None and promoted.name == name)


def render(report: Report, form: Format, pictures: Sequence[Picture] = ()) -> str:
    """Return the report in one format. All formats have the same content; only HTML has the ``pictures``."""
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


# The facts of a week, read from the database.
def week_facts(database: Database, pools: Mapping[str, Pool], start: int, end: int, scale: float) -> WeekFacts:
    """Return the facts of [start, end), read in one transaction; ``scale`` is that of the clock, 1 for real time."""
    with database.read() as tx:
        good = [manifest for manifest, _ in checkpoints.saved(tx)]
        return facts_within(tx, pools, start, end, scale, ledger.entries(tx, since=start), good, jobs.everything(tx))


def facts_within(
    tx: Connection,
    pools: Mapping[str, Pool],
    start: int,
    end: int,
    scale: float,
    entries: Sequence[LedgerEntry],
    manifests: Sequence[Manifest],
    queue: Sequence[JobRecord],
) -> WeekFacts:
    """Return the facts of [start, end) from loaded ledger entries, manifests and jobs; runs are read here."""
    week_runs = queue_waits.attach(tx, runs.between(tx, start, end))
    touched = [run for run in week_runs if run.planned_start < end]
    parents = generations.parents(tx)
    firsts = {job: {first for _, first in begun} for job, begun in generations.beginnings(tx).items()}
    for record in queue:  # earlier attempts belong to a removed job of this name
        firsts.setdefault(record.spec.name, set()).add(record.fenced_attempt + 1)
    signs: dict[str, int] = {}
    for (key, _), report in runs.heartbeats(tx, [run.key for run in touched]).items():
        if report.at is not None:
            signs[key] = max(report.at, signs.get(key, 0))
    return WeekFacts(
        start=start,
        end=end,
        scale=scale,
        pools=pools,
        observed=limits.observed(tx),
        entries=entries,
        runs=touched,
        last_signs=signs,
        firsts={job: sorted(attempts) for job, attempts in firsts.items()},
        closed={
            pool: closure.why
            for pool, closure in limits.standing(tx).items()
            if closure.until is None or closure.until > end
        },
        manifests=manifests,
        jobs=[
            JobFacts(
                name=record.spec.name,
                role=record.spec.role,
                target_step=record.spec.target_step,
                step=record.done_step,
                state=type(record.state).__name__.lower(),
                why=why(record.state, None, "UTC", 0) if isinstance(record.state, Done | Failed | Held) else "",
                starts_from=parents.get(record.spec.name),
            )
            for record in queue
        ],
    )
