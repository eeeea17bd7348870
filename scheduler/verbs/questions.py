"""Verbs that read the database, one function each.

The first parameter is the source; the first line of the docstring is the help text of the verb. Every function raises
StoreFailure, and an Unknown... error for a name that does not exist.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from importlib.metadata import version as version_of
from itertools import groupby
from operator import attrgetter
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Connection

from jobs.nouns.window import DAY, WEEK, Window
from jobs.spec import EVALUATE
from scheduler.core.job import Active, Done
from scheduler.core.quota import Meter
from scheduler.core.reasons import Reason
from scheduler.core.why import in_queue
from scheduler.report.burn_down import BurnDown, burn_down_svg
from scheduler.report.report import Need
from scheduler.report.timeline import Timeline
from scheduler.service.facts.early_stops import standing
from scheduler.service.facts.snapshot import load_snapshot
from scheduler.service.quota.usage import meters_of
from scheduler.store import (
    checkpoints,
    counts,
    events,
    generations,
    jobs,
    ledger,
    limits,
    plans,
    queue_waits,
    rates,
    runs,
    series,
    training_data,
    versions,
)
from scheduler.store.checkpoints import CheckpointRecord
from scheduler.store.engine import revision
from scheduler.store.jobs import JobRecord
from scheduler.store.schema import REVISIONS
from scheduler.verbs import shapes
from scheduler.verbs.arguments import (
    PAGE_ROWS,
    BadRequest,
    Day,
    Hours,
    Instant,
    JobState,
    Name,
    Names,
    Page,
    Position,
    Rows,
    Text,
)
from scheduler.verbs.log_tail import Log
from scheduler.verbs.shapes import paged
from scheduler.verbs.source import Source
from scheduler.verbs.surface import Surface, verb
from scheduler.views import chart_facts
from scheduler.views import models as views
from scheduler.views.coming_week import ComingWeek, coming_week
from scheduler.views.curve_forecasts import HOURS, HoursAdvice, JobCurve, JobForecast, hours_advice
from scheduler.views.documents import checkpoint_json, job_json, listed_job_json, picked, plan_json, run_json, wait_json
from scheduler.views.long_work import long_work
from scheduler.views.needs import needs
from scheduler.views.overview import PoolNow, daemon_health, pools_now
from scheduler.views.plan_history import compare
from scheduler.views.training import share_now
from scheduler.views.verdict import sentence, verdict

_JOBS_SHOWN = 12
_FINISHED_SHOWN = 6
STATES = ("active", "queued", "held", "failed", "done", "cancelled")  # in the order of the page
_RUNS_SHOWN = 20
_CHECKPOINTS_SHOWN = 50
_EVENTS_SHOWN = 200
DAYS = 7  # of the timeline
SETTLED_SECONDS = 7 * DAY
"""A session whose planned end is longer ago has ended and was billed, so its picture no longer changes."""
_DAYS_BEFORE = 3  # of the timeline, before today


@verb("status", kept_seconds=0.25)
def status(source: Source) -> shapes.Status:
    """Whether the scheduler does its work, the pools, and the actions required."""
    now = source.now
    with source.read() as tx:
        leader, cycled_at, problems = scheduler_health(source, tx, now)
        plan = source.plan(tx)
        return shapes.Status(
            version=version_of("uff-scheduler"),
            now=now,
            zone=source.zone,
            revision=source.revision(tx),
            leader=leader,
            last_cycle_at=cycled_at,
            problems=problems,
            jobs=counts.jobs_by_state(tx),
            runs_live=counts.live_sessions(tx),
            runs_waiting=queue_waits.count(tx),
            plan_made_at=None if plan is None else plan.made_at,
            pools=pools(source, tx, now),
            needs=newest_needs(source, tx, now),
            work=list(long_work(tx)),
        )


def scheduler_health(source: Source, tx: Connection, now: int) -> tuple[str | None, int | None, list[str]]:
    """Return the name of the leading daemon, the time of its last cycle, and the scheduler's problems as sentences."""
    problems = []
    schema = revision(tx, source.app.reading.where)
    if schema != REVISIONS[-1]:
        problems.append(f"The database is at schema {schema}, this page knows {REVISIONS[-1]}. Restart after upgrades.")
    settings = source.app.settings
    over, cycle_seconds = settings.clock.stopped_at is not None, settings.daemon.cycle_seconds
    daemon = daemon_health(tx, now, cycle_seconds, source.app.clock.wall_seconds, over=over)
    return daemon.leader, daemon.cycled_at, [*problems, *filter(None, [daemon.problem])]


def pools(source: Source, tx: Connection, now: int) -> list[PoolNow]:
    """Return the present state of the pools, ordered by name."""
    return pools_now(tx, source.pools, runs.live(tx), now)


def newest_needs(source: Source, tx: Connection, now: int) -> list[Need]:
    """Return the actions required that arose in the last seven days."""
    return source.kept(
        "needs", source.news(tx), lambda: needs(tx, source.pools, now - WEEK, now, source.alarms(tx), source.plan)
    )


@verb("revision")
def revision_now(source: Source) -> shapes.Revision:
    """A word that changes when anything does: ask for it often, and for the rest when it changed."""
    with source.read() as tx:
        return shapes.Revision(revision=source.revision(tx), now=source.now)


@verb("training", kept_seconds=0.25)
def training(source: Source) -> shapes.TrainingNow:
    """How it goes in one line, and the jobs that matter most: saved and live steps, loss, speed, end."""
    with source.read() as tx:
        return training_now(source, tx, newest_needs(source, tx, source.now), source.now)


def training_now(source: Source, tx: Connection, needs: Sequence[Need], now: int) -> shapes.TrainingNow:
    """Return the verdict on training, and the jobs: running, failed or held, waiting, then recently finished ones."""
    active, _ = jobs.page(tx, _JOBS_SHOWN, states={"active"})
    records = list(active)
    for wanted in ({"failed", "held"}, {"queued"}, {"done"}):
        room = _JOBS_SHOWN - len(records)
        records += jobs.page(tx, room, states=wanted)[0] if room > 0 else []
    # A finished evaluation is left out: the version shows its result.
    records = [record for record in records if record.spec.role != EVALUATE or not isinstance(record.state, Done)]
    going = source.trainings(tx, records, now)
    states = counts.training_by_state(tx)
    over = source.app.settings.clock.stopped_at is not None
    finished = events.tail(tx, limit=_FINISHED_SHOWN, kinds=("job.finish",))
    week = [event.subject for event in finished if event.at > now - WEEK]
    over_now = [record for name in dict.fromkeys(reversed(week)) if (record := jobs.find(tx, name)) is not None]
    coming, paused = {} if over else source.places(tx), limits.paused(tx) is not None
    judged = verdict(going, states, coming, needs, meters(source, tx, now), now, paused=paused)
    done = [one for one in over_now if isinstance(one.state, Done) and one.spec.role != EVALUATE]
    return shapes.TrainingNow(
        finished=job_rows(source, tx, done),
        verdict=judged,
        line=sentence(judged, now, source.zone),
        jobs=[
            shapes.TrainingRow(**row.model_dump(), training=each)
            for row, each in zip(job_rows(source, tx, records), going, strict=True)
        ],
        more=sum(count for state, count in states.items() if state != "cancelled")
        - sum(record.spec.role != EVALUATE for record in records),
    )


@verb("queue.list", "/queue")
def queue_list(
    source: Source, page: Page = 1, rows: Rows = PAGE_ROWS, state: JobState | None = None, name: Text = ""
) -> shapes.Queue:
    """The jobs in queue order with what each waits for, in one state or with a part of a name if asked."""
    with source.read() as tx:
        records, total = jobs.page(tx, rows, (page - 1) * rows, {state} if state else (), name)
        states = counts.jobs_by_state(tx)
        return shapes.Queue(jobs=job_rows(source, tx, records), states=states, **paged(page, rows, total))


def job_rows(source: Source, tx: Connection, records: Sequence[JobRecord]) -> list[shapes.JobRow]:
    """Return jobs as rows of the JSON API, in the same order."""
    return [shapes.JobRow(**document) for document in _rows_of(source, tx, records, listed_job_json)]


@verb("queue.show", "/jobs/{job}")
def queue_show(source: Source, job: Name) -> shapes.JobDetail:
    """All there is to know about one job: definition, losses, speeds, checkpoints, runs."""
    with source.read() as tx:
        record = jobs.get(tx, job)
        saved = checkpoints.everything(tx, job)
        sessions, _ = runs.page(tx, _RUNS_SHOWN, job=job)
        curve = series.curve(series.of_job(tx, job, record.fenced_attempt + 1))
        (document,) = _rows_of(source, tx, [record], job_json)
        fields = {
            **document,
            "training": source.trainings(tx, [record], source.now)[0],
            "stop": standing(tx, record.spec, record.fenced_attempt) if record.spec.stop else None,
            "share": share_now(tx, job),
            "training_data": training_data.of_job(tx, job),
            "told": [(one.step, one.loss) for one in curve if one.loss is not None],
            "sessions": [next(points).step for _, points in groupby(curve, attrgetter("attempt"))],
            "speeds": rates.of_job(tx, job),
            "losses": losses([one for one in saved if one.manifest.attempt > record.fenced_attempt]),
            "generations": generations.of_job(tx, job),
            "checkpoints": [checkpoint_json(fields) for fields in saved[:_CHECKPOINTS_SHOWN]],
            "runs": [run_json(run) for run in queue_waits.attach(tx, sessions)],
        }
    return shapes.JobDetail.model_validate(fields)


@verb("queue.forecast", "/jobs/{job}/forecast", key="forecast")
def queue_forecast(source: Source, job: Name, hours: Hours = HOURS, metric: Text = "") -> JobForecast:
    """What a job's metric will be, with 90 % bands, when it reaches its goal, and what more hours would buy."""
    with source.read() as tx:
        record = jobs.get(tx, job)
        (going,) = source.trainings(tx, [record], source.now)
        return JobCurve(tx, record, going, source.plan(tx), source.now, metric).forecast(hours)


@verb("advise.hours", slow=True, key="advice")
def advise_hours(source: Source, hours: Hours = HOURS) -> HoursAdvice:
    """Which jobs are worth more hours: by expected gain, with what last week's hours bought, and what to type."""
    now = source.now
    with source.read() as tx:
        records = [one for one in jobs.everything(tx, {"active", "queued", "held"}) if one.spec.role != EVALUATE]
        goings, plan, week = source.trainings(tx, records, now), source.plan(tx), week_ahead(source, tx)
        return hours_advice(tx, records, goings, source.pools, plan, week, hours, now)


def losses(saved: Sequence[CheckpointRecord]) -> list[tuple[int, float]]:
    """Return (step, held-out loss) by step, for undamaged checkpoints with a finite held-out loss."""
    curves = {
        record.manifest.step: loss
        for record in reversed(saved)
        if record.state != "quarantined"
        and (loss := record.manifest.metrics.get("held_out_loss")) is not None
        and math.isfinite(loss)
    }
    return sorted(curves.items())


def _rows_of(
    source: Source,
    tx: Connection,
    records: Sequence[JobRecord],
    document_of: Callable[[JobRecord, Reason | None], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return the documents of jobs, each with a sentence that says why the job is in its state."""
    reasons, places = source.reasons(tx), source.places(tx)
    run_of = {record.spec.name: record.state.run for record in records if isinstance(record.state, Active)}
    waits = queue_waits.of(tx, run_of.values())
    documents = []
    for record in records:
        name = record.spec.name
        run, reason = run_of.get(name, ""), reasons.get(name)
        wait = waits.get(run)
        if wait is None:
            why = source.why(record.state, reason, places.get(name))
        else:
            why = in_queue(record.last_pool or "", run, wait, source.zone)
        documents.append({**document_of(record, reason), "why": why, "waiting": wait_json(wait)})
    return documents


@verb("runs.list", "/runs")
def runs_list(
    source: Source, page: Page = 1, rows: Rows = PAGE_ROWS, pool: Text | None = None, job: Text | None = None
) -> shapes.Runs:
    """The runs, newest first, of one pool or with one job if asked."""
    with source.read() as tx:
        page_of_runs, total = runs.page(tx, rows, (page - 1) * rows, pool, job)
        page_of_runs = queue_waits.attach(tx, page_of_runs)
    return shapes.Runs(runs=[shapes.RunRow(**run_json(run)) for run in page_of_runs], **paged(page, rows, total))


@verb("runs.log", "/runs/{run}/log", slow=True)
def runs_log(surface: Surface, run: Name, after: Position = 0) -> Log:
    """The end of what a session printed, from a byte on."""
    return surface.tails.read(run, after)


@verb("runs.show", "/runs/{run}")
def runs_show(source: Source, run: Name) -> shapes.RunDetail:
    """One run with its lanes, their newest heartbeats, and what happened to it."""
    with source.read() as tx:
        (record,) = queue_waits.attach(tx, [runs.get(tx, run)])
        beats = runs.heartbeats(tx, [run])
        history = events.tail(tx, limit=_EVENTS_SHOWN, subject=run)
    return shapes.RunDetail.model_validate({**run_json(record, beats), "events": history})


@verb("events.list", "/events")
def events_list(
    source: Source, after: Position = 0, limit: Rows = 200, kinds: Names | None = None, subject: Name | None = None
) -> shapes.Events:
    """What happened after an event, oldest first."""
    with source.read() as tx:
        listed = events.tail(tx, after, limit, kinds, subject)
        newest, pruned = events.newest_id(tx), events.pruned_up_to(tx)
    # If there are fewer events than the limit, all that match up to the newest event were returned.
    position = listed[-1].id if len(listed) == limit else max(newest, after)
    return shapes.Events(events=listed, position=position, missed_up_to=pruned if after < pruned else 0)


def meters(source: Source, tx: Connection, now: int) -> list[Meter]:
    """Return the meters of all quotas: limit, used, reserved and free amounts, ordered by pool."""
    return meters_of(source.pools, source.charges(tx), limits.observed(tx), now)


def burn_downs(source: Source, tx: Connection, now: int) -> list[BurnDown]:
    """Return for each quota of each pool its use over time, and the use that the newest plan expects."""
    return chart_facts.burn_downs(tx, source.pools, source.plan(tx), source.charges(tx), now)


def sparks(source: Source, tx: Connection, now: int) -> Mapping[tuple[str, str], str]:
    """Return a sparkline (a small SVG) of each quota's use, by pool and quota, at most a minute old."""
    return source.kept(
        "sparks",
        (ledger.newest_number(tx), plans.newest_number(tx), now // 60),
        lambda: {
            (chart.pool, chart.quota): burn_down_svg(chart, source.zone, height=28, axes=False)
            for chart in burn_downs(source, tx, now)
        },
    )


@verb("quota", kept_seconds=0.25)
def quotas(source: Source) -> shapes.Quotas:
    """Every quota of every pool, and how it is used up."""
    now = source.now
    with source.read() as tx:
        answer = {"quotas": meters(source, tx, now), "burn_down": burn_downs(source, tx, now)}
    return shapes.Quotas.model_validate(answer)


@verb("ledger.list", "/ledger")
def ledger_list(source: Source, page: Page = 1, rows: Rows = PAGE_ROWS, pool: Text | None = None) -> shapes.Ledger:
    """The facts about metered time, newest first, of one pool if asked."""
    with source.read() as tx:
        entries, total = ledger.page(tx, rows, (page - 1) * rows, pool)
    return shapes.Ledger(entries=entries, **paged(page, rows, total))


@verb("plan.show", "/plan", key="plan")
def plan_show(source: Source) -> shapes.PlanRow | None:
    """The newest plan: sessions with their jobs, and why the others wait."""
    with source.read() as tx:
        plan, row_of = source.plan(tx), shapes.PlanRow.model_validate
        return source.kept("plan row", plans.newest_number(tx), lambda: row_of(plan_json(plan)) if plan else None)


@verb("plan.week", slow=True, key="week")
def plan_week(source: Source) -> ComingWeek | None:
    """The coming week by pool and lane: sessions, gaps with their reason, what could use them, expected work."""
    with source.read() as tx:
        return week_ahead(source, tx)


def week_ahead(source: Source, tx: Connection) -> ComingWeek | None:
    """Return the coming week in the newest plan, at most a minute old; None without a plan."""
    plan, now = source.plan(tx), source.now
    if plan is None:
        return None
    version = (source.news(tx), now // 60)
    snapshot = partial(load_snapshot, tx, source.pools, now, source.app.policy.horizon_seconds)
    return source.kept("week", version, lambda: coming_week(snapshot(), plan, source.zone))


@verb("plan.difference", slow=True)
def plan_difference(source: Source, since: Instant | None = None) -> shapes.PlanDifference:
    """What the newest plan changed of the one before, or of that of ``since`` (UTC seconds)."""
    app = source.app
    with source.read() as tx:
        version = plans.newest_number(tx)

    def make() -> shapes.PlanDifference:
        diff = compare(app.reading, app.pools, source.now, app.policy.horizon_seconds, since)
        finishes = [
            shapes.FinishChange(job=change.job, before=before, after=after)
            for change in diff.difference.jobs
            if (before := change.before.finish if change.before else None)
            != (after := change.after.finish if change.after else None)
        ]
        heads = {"before": diff.before, "after": diff.after}
        return shapes.PlanDifference.model_validate({**heads, "sessions": diff.sessions, "finishes": finishes})

    return source.kept(("difference", since), version, make)


@verb("models.list", "/models", key="models")
def models_list(source: Source) -> list[views.Model]:
    """Models with their versions, and which is promoted."""
    with source.read() as tx:
        return views.models(tx)


@verb("models.show", "/models/{version}", key="version")
def models_show(source: Source, version: Name) -> shapes.Data:
    """One version, such as ``ufm@3``, with its verdicts and what they rest on."""
    with source.read() as tx:
        return views.facts(tx, versions.named(tx, version)).document()


def span_around(now: int, zone: str) -> Window:
    """Return the bounds of seven local days in ``zone``; today is the fourth of them."""
    return span_from(datetime.fromtimestamp(now, UTC).astimezone(ZoneInfo(zone)).date() - timedelta(_DAYS_BEFORE), zone)


def span_from(day: date, zone: str, days: int = DAYS) -> Window:
    """Return the bounds of ``days`` local days that begin with ``day``. Raises OverflowError for far dates."""
    first, last = (
        datetime(at.year, at.month, at.day, tzinfo=ZoneInfo(zone)) for at in (day, day + timedelta(days=days))
    )
    return Window(int(first.timestamp()), int(last.timestamp()))


def timeline(source: Source, tx: Connection, span: Window, now: int) -> Timeline:
    """Return the past, running and planned sessions within ``span``, for the timeline picture."""
    return chart_facts.timeline(tx, source.pools, source.plan(tx), span, now)


@verb("sessions.list", "/sessions")
def span(source: Source, from_: Day | None = None) -> shapes.Span:
    """The sessions of seven days, past, running and planned; those around now unless a day is named."""
    now = source.now
    window = span_around(now, source.zone) if from_ is None else span_from(day_of(from_), source.zone)
    with source.read() as tx:
        drawn = timeline(source, tx, window, now)
    same = ("pool", "start", "phase", "key", "outcome")
    sessions = [
        shapes.SessionRow(**picked(each, *same), end=each.ends, jobs=[lane.job for lane in each.lanes])
        for each in drawn.sessions
    ]
    return shapes.Span(start=window.start, end=window.end, now=now, sessions=sessions)


def day_of(text: str) -> date:
    """Parse a day such as ``2026-11-16``. Raises BadRequest if it is not a valid day of the years 1970 to 9000."""
    try:
        day = date.fromisoformat(text)
        if day.isoformat() != text:
            raise ValueError(text)
    except ValueError:
        raise BadRequest(f"{text} is not a day; write it like 2026-11-16") from None
    if not 1970 <= day.year <= 9_000:  # the days before and after, with the zone's offset, must be valid dates too
        raise BadRequest(f"{text} is outside the years 1970 to 9000")
    return day
