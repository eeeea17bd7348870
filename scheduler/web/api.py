"""API: the verbs that read, as addresses that answer with typed JSON. Everything is read with GET."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from inspect import Signature
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import PlainTextResponse, Response

from scheduler.verbs import archive, questions
from scheduler.verbs.arguments import Week
from scheduler.verbs.shapes import Fault, Span
from scheduler.verbs.surface import Surface, Verb
from scheduler.verbs.table import VERBS
from scheduler.views.weekly_report import render
from scheduler.web.guard import PROBLEM

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PROBLEM = {PROBLEM: {"schema": Fault.model_json_schema()}}
_ALWAYS: dict[int | str, dict[str, Any]] = {
    404: {"description": "There is nothing of this name.", "content": _PROBLEM},
    422: {"description": "The question cannot be understood.", "content": _PROBLEM},
    503: {"description": "The database cannot be read now.", "content": _PROBLEM},
}


def routes(surface: Surface) -> APIRouter:
    """Return the routes below /api/v1."""
    api = APIRouter(prefix="/api/v1", responses=_ALWAYS)
    for verb in VERBS.values():
        if verb.address and not verb.changes:
            api.add_api_route(verb.address, _endpoint(surface, verb), name=verb.name.replace(".", "_"), methods=["GET"])

    @api.get("/sessions")
    def span(
        day: Annotated[
            str | None,
            Query(
                alias="from", pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", description="First of seven days, 2026-11-16."
            ),
        ] = None,
    ) -> Span:
        """Return the sessions of seven days, past, running and planned; those around now unless a day is named."""
        return questions.span(surface, None if day is None else day_of(day))

    @api.get("/reports/{week}/text", response_class=PlainTextResponse)
    def report_text(week: Week, form: Literal["text", "markdown"] = "text") -> str:
        """Return a week's report in words."""
        return render(archive.report(surface, week), form)

    return api


def _endpoint(surface: Surface, verb: Verb) -> Callable[..., Any]:
    """Return a verb as FastAPI takes it."""

    def endpoint(**values: Any) -> Response:
        return Response(verb.view.dump_json(verb.ask(surface, values)), media_type="application/json")

    queries = {name: one for name, one in verb.keywords.items() if f"{{{name}}}" not in verb.address}
    marked = {name: one.replace(annotation=Annotated[one.annotation, Query()]) for name, one in queries.items()}
    endpoint.__signature__ = Signature(  # type: ignore[attr-defined]  # what FastAPI looks for
        [*{**verb.keywords, **marked}.values()], return_annotation=verb.answers
    )
    endpoint.__doc__ = verb.answer.__doc__
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
