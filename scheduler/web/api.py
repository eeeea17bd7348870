"""API: the verbs that read, as addresses that answer with typed JSON. Everything is read with GET."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Signature
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse, Response

from scheduler.verbs import archive
from scheduler.verbs.arguments import Week, alias_of
from scheduler.verbs.shapes import Fault
from scheduler.verbs.surface import Surface, Verb, json_of
from scheduler.verbs.table import VERBS
from scheduler.views.weekly_report import render
from scheduler.web.guard import PROBLEM

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
        if verb.who == "readers":
            api.add_api_route(verb.address, _endpoint(surface, verb), name=verb.name.replace(".", "_"), methods=["GET"])

    @api.get("/reports/{week}/text", response_class=PlainTextResponse)
    def report_text(week: Week, form: Literal["text", "markdown"] = "text") -> str:
        """Return a week's report in words."""
        return render(archive.report(surface, week), form)

    return api


def _endpoint(surface: Surface, verb: Verb) -> Callable[..., Any]:
    """Return a verb as FastAPI takes it."""

    def endpoint(**values: Any) -> Response:
        return Response(json_of(verb.ask(surface, values), verb.view), media_type="application/json")

    parameters = [
        one
        if f"{{{name}}}" in verb.address
        else one.replace(annotation=Annotated[one.annotation, Query(alias=alias_of(name))])
        for name, one in verb.keywords.items()
    ]
    endpoint.__signature__ = Signature(  # type: ignore[attr-defined]  # what FastAPI looks for
        parameters, return_annotation=verb.answers
    )
    endpoint.__doc__ = verb.answer.__doc__
    return endpoint
