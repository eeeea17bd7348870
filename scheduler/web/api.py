"""API: the same facts as the pages, as typed JSON. Everything is read with GET."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from datetime import date
from inspect import Signature, signature
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Path, Query
from fastapi.responses import PlainTextResponse

from scheduler.views.weekly_report import render
from scheduler.web import archive, questions
from scheduler.web.guard import PROBLEM
from scheduler.web.log_tail import LogTails
from scheduler.web.shapes import Fault, Log, Name, Position, ReportMessage, Revision, Span, finite
from scheduler.web.source import Source

Week = Annotated[str, Path(pattern=r"^[0-9]{4}-W[0-9]{2}$", description="ISO week, such as 2026-W47.")]
Channel = Annotated[str, Path(min_length=1, max_length=100, description="As `/reports` names it: email, slack ...")]
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PROBLEM = {PROBLEM: {"schema": Fault.model_json_schema()}}
_MISSING: dict[int | str, dict[str, Any]] = {
    404: {"description": "There is nothing of this name.", "content": _PROBLEM}
}
_ALWAYS: dict[int | str, dict[str, Any]] = {
    422: {"description": "The question cannot be understood.", "content": _PROBLEM},
    503: {"description": "The database cannot be read now.", "content": _PROBLEM},
}


# Address, name in the schema, and what answers.
_QUESTIONS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("/status", "whole", questions.status),
    ("/training", "training", questions.training),
    ("/queue", "queue", questions.queue_list),
    ("/jobs/{name}", "job", questions.queue_show),
    ("/runs", "runs", questions.runs_list),
    ("/runs/{key}", "run", questions.runs_show),
    ("/models", "all_models", questions.models_list),
    ("/models/{name}", "version", questions.models_show),
    ("/quota", "quotas", questions.quotas),
    ("/ledger", "ledger", questions.ledger_list),
    ("/plan", "newest", questions.plan_show),
    ("/plan/week", "week", questions.plan_week),
    ("/plan/difference", "difference", questions.plan_difference),
    ("/reports", "reports", archive.reports),
)


def routers(source: Source, tails: LogTails) -> tuple[APIRouter, APIRouter]:
    """Return the routes below /api/v1: those that answer with JSON, and those with text."""
    api = APIRouter(prefix="/api/v1", responses=_ALWAYS)
    plain = APIRouter(prefix="/api/v1", responses=_ALWAYS)

    for path, name, answer in _QUESTIONS:
        missing = _MISSING if "{" in path or answer is questions.plan_difference else None
        api.add_api_route(path, _endpoint(source, answer, path), name=name, methods=["GET"], responses=missing)

    @api.get("/revision")
    def revision() -> Revision:
        """A word that changes when anything does: ask for it often, and for the rest when it changed."""
        with source.read() as tx:
            return Revision(revision=source.revision(tx), now=source.now)

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
        return questions.span(source, None if day is None else day_of(day))

    @api.get("/runs/{key}/log", responses=_MISSING)
    def log(key: Name, after: Position = 0) -> Log:
        """Return the end of what a session printed, from byte ``after`` on."""
        return tails.read(key, after)

    @api.get("/reports/{week}", responses=_MISSING)
    def report(week: Week) -> dict[str, Any]:
        """Return a week's report, as ``schedctl report weekly --json`` does."""
        document: dict[str, Any] = finite(asdict(archive.report(source, known_week(week))))
        return document

    @api.get("/reports/{week}/letters/{channel}", responses=_MISSING)
    def message(week: Week, channel: Channel) -> ReportMessage:
        """Return a week's report as sent to a channel."""
        return archive.message(source, known_week(week), channel)

    @plain.get("/reports/{week}/text", response_class=PlainTextResponse, responses=_MISSING)
    def report_text(week: Week, form: Literal["text", "markdown"] = "text") -> str:
        """Return a week's report in words."""
        return render(archive.report(source, known_week(week)), form)

    return api, plain


def _endpoint(source: Source, answer: Callable[..., Any], path: str) -> Callable[..., Any]:
    """Return a question of ``source`` as FastAPI takes it; what an address names has the name that stands there."""
    _, *parameters = signature(answer, eval_str=True).parameters.values()
    in_path = re.findall(r"{(\w+)}", path)
    arguments = [*in_path, *(one.name for one in parameters[len(in_path) :])]

    def endpoint(**values: Any) -> Any:
        return answer(source, **{one.name: values[name] for one, name in zip(parameters, arguments, strict=True)})

    renamed = [one.replace(name=name) for one, name in zip(parameters, arguments, strict=True)]
    endpoint.__signature__ = Signature(  # type: ignore[attr-defined]  # what FastAPI looks for
        renamed, return_annotation=signature(answer, eval_str=True).return_annotation
    )
    endpoint.__doc__ = answer.__doc__
    return endpoint


def day_of(text: str) -> date:
    """Return the day that ``2026-11-16`` names. Raises HTTPException 404 when there is no such day."""
    try:
        if not _DAY.fullmatch(text):
            raise ValueError(text)
        day = date.fromisoformat(text)
    except ValueError:
        raise HTTPException(404, f"{text} is no day; write it like 2026-11-16") from None
    # The zone's offsets and the days before and after must exist as well.
    if not 1970 <= day.year <= 9_000:
        raise HTTPException(404, f"{text} is outside the years 1970 to 9000")
    return day


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
