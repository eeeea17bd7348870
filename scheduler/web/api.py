"""API: the same facts as the pages, as typed JSON. Everything is read with GET."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import date
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Path, Query
from fastapi.responses import PlainTextResponse

from scheduler.views.weekly_report import render
from scheduler.web import archive, plan, quota, week
from scheduler.web import models as versions
from scheduler.web import queue as queues
from scheduler.web import runs as sessions
from scheduler.web.guard import PROBLEM
from scheduler.web.log_tail import LogTails
from scheduler.web.models import Models, VersionDetail
from scheduler.web.paging import PAGE_ROWS, Paging
from scheduler.web.shapes import (
    Fault,
    JobDetail,
    Ledger,
    Letter,
    Log,
    NewestPlan,
    PlanDifference,
    Quotas,
    Reports,
    Revision,
    RunDetail,
    Runs,
    Span,
    Status,
    TrainingNow,
    finite,
)
from scheduler.web.shapes import Queue as QueueShape
from scheduler.web.source import Source
from scheduler.web.status import newest_needs, status
from scheduler.web.training import training_now

Page = Annotated[int, Query(ge=1, le=1_000_000, description="From 1.")]
Rows = Annotated[int, Query(ge=1, le=500, description="How many entries a page holds.")]
JobName = Annotated[str, Path(min_length=1, max_length=200)]
JobState = Literal["queued", "active", "held", "done", "failed", "cancelled"]
Week = Annotated[str, Path(pattern=r"^[0-9]{4}-W[0-9]{2}$", description="ISO week, such as 2026-W47.")]
Channel = Annotated[str, Path(min_length=1, max_length=100, description="As `/reports` names it: email, slack ...")]
Text = Annotated[str | None, Query(max_length=200)]
_INSTANT_MAX = 253_402_300_799  # the end of the year 9999
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PROBLEM = {PROBLEM: {"schema": Fault.model_json_schema()}}
_MISSING: dict[int | str, dict[str, Any]] = {
    404: {"description": "There is nothing of this name.", "content": _PROBLEM}
}
_ALWAYS: dict[int | str, dict[str, Any]] = {
    422: {"description": "The question cannot be understood.", "content": _PROBLEM},
    503: {"description": "The database cannot be read now.", "content": _PROBLEM},
}


def routers(source: Source, tails: LogTails) -> tuple[APIRouter, APIRouter]:  # noqa: C901 - a list of addresses, one function each
    """Return the routes below /api/v1: those that answer with JSON, and those with text."""
    api = APIRouter(prefix="/api/v1", responses=_ALWAYS)
    plain = APIRouter(prefix="/api/v1", responses=_ALWAYS)

    @api.get("/revision")
    def revision() -> Revision:
        """A word that changes when anything does: ask for it often, and for the rest when it changed."""
        with source.read() as tx:
            return Revision(revision=source.revision(tx), now=source.now)

    @api.get("/status")
    def whole() -> Status:
        """Return whether the scheduler does its work, the pools, and the actions required."""
        return status(source)

    @api.get("/training")
    def training() -> TrainingNow:
        """Return in one line how it goes, and the jobs that matter most: what is saved and live, loss, speed, end."""
        with source.read() as tx:
            return training_now(source, tx, newest_needs(source, tx, source.now), source.now)

    @api.get("/sessions", responses=_MISSING)
    def span(
        day: Annotated[
            str | None,
            Query(
                alias="from", pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", description="First of seven days, 2026-11-16."
            ),
        ] = None,
    ) -> Span:
        """Return the sessions of seven days, past, running and planned; those around now unless a day is named."""
        return week.span(source, None if day is None else day_of(day))

    @api.get("/queue")
    def queue(page: Page = 1, rows: Rows = PAGE_ROWS, state: JobState | None = None, name: Text = None) -> QueueShape:
        """Return the jobs in queue order with what each waits for, in one state or with a part of a name if asked."""
        return queues.queue(source, Paging(page, rows), state, name or "")

    @api.get("/jobs/{name}", responses=_MISSING)
    def job(name: JobName) -> JobDetail:
        """Return all there is to know about one job."""
        return queues.job(source, name)

    @api.get("/runs")
    def runs(page: Page = 1, rows: Rows = PAGE_ROWS, pool: Text = None, job: Text = None) -> Runs:
        """Return the runs, newest first."""
        return sessions.listed(source, Paging(page, rows), pool, job)

    @api.get("/runs/{key}", responses=_MISSING)
    def run(key: JobName) -> RunDetail:
        """Return one run with its lanes, their newest heartbeats, and what happened to it."""
        return sessions.run(source, key)

    @api.get("/runs/{key}/log", responses=_MISSING)
    def log(key: JobName, after: Annotated[int, Query(ge=0, le=2**53)] = 0) -> Log:
        """Return the end of what a session printed, from byte ``after`` on."""
        return tails.read(key, after)

    @api.get("/models")
    def all_models() -> Models:
        """Return models with their versions: state, what is in force, what each began with."""
        with source.read() as tx:
            return versions.everything(tx)

    @api.get("/models/{name}", responses=_MISSING)
    def version(name: JobName) -> VersionDetail:
        """Return one version, such as ``ufm@3``, with its verdicts and what they rest on."""
        return versions.detail(source, name)

    @api.get("/quota")
    def quotas() -> Quotas:
        """Return every quota of every pool, and how it burns down."""
        return quota.quotas(source)

    @api.get("/ledger")
    def ledger(page: Page = 1, rows: Rows = PAGE_ROWS, pool: Text = None) -> Ledger:
        """Return the facts about metered time, newest first."""
        return quota.entries(source, Paging(page, rows), pool)

    @api.get("/plan")
    def newest() -> NewestPlan:
        """Return the newest plan."""
        return plan.newest(source)

    @api.get("/plan/difference", responses=_MISSING)
    def difference(since: Annotated[int | None, Query(ge=0, le=_INSTANT_MAX)] = None) -> PlanDifference:
        """Return what the newest plan changed of the one before, or of that in force at ``since`` (UTC seconds)."""
        return plan.difference(source, since)

    @api.get("/reports")
    def reports() -> Reports:
        """Return the weeks that have a report."""
        return archive.reports(source)

    @api.get("/reports/{week}", responses=_MISSING)
    def report(week: Week) -> dict[str, Any]:
        """Return a week's report, as ``schedctl report weekly --json`` does."""
        found: dict[str, Any] = finite(asdict(archive.report(source, known_week(week))))
        return found

    @api.get("/reports/{week}/letters/{channel}", responses=_MISSING)
    def letter(week: Week, channel: Channel) -> Letter:
        """Return a week's report as it was sent to a channel."""
        return archive.letter(source, known_week(week), channel)

    @plain.get("/reports/{week}/text", response_class=PlainTextResponse, responses=_MISSING)
    def report_text(week: Week, form: Literal["text", "markdown"] = "text") -> str:
        """Return a week's report in words."""
        return render(archive.report(source, known_week(week)), form)

    return api, plain


def day_of(text: str) -> date:
    """Return the day that ``2026-11-16`` names. Raises HTTPException 404 when there is no such day."""
    try:
        if not _DAY.fullmatch(text):
            raise ValueError(text)
        found = date.fromisoformat(text)
    except ValueError:
        raise HTTPException(404, f"{text} is no day; write it like 2026-11-16") from None
    # The zone's offsets and the days before and after must exist as well.
    if not 1970 <= found.year <= 9_000:
        raise HTTPException(404, f"{text} is outside the years 1970 to 9000")
    return found


def known_week(label: str) -> str:
    """Return ``label`` if there is such a week. Raises HTTPException 404."""
    year, _, number = label.partition("-W")
    try:
        date.fromisocalendar(int(year), int(number), 1)
    except ValueError:
        raise HTTPException(404, f"{label} is no week") from None
    if not 1970 <= int(year) <= 9_000:
        raise HTTPException(404, f"{label} is outside the years 1970 to 9000")
    return label
