"""Site: everything put together behind the guard, and what is answered when something fails."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp

from jobs.problem import NotFound, Refusal
from platforms.artifacts.base import StoreError
from scheduler.app import App
from scheduler.report.chart import printable
from scheduler.service.outside.ports import EventLog
from scheduler.store.errors import Stale, StoreFailure
from scheduler.verbs import questions
from scheduler.verbs.arguments import BadRequest, checked
from scheduler.verbs.shapes import Fault, Health
from scheduler.verbs.surface import Surface, Verb
from scheduler.verbs.table import VERBS
from scheduler.web import api, metrics, pages
from scheduler.web.actors import PREFIX, ActionRefused, Actors, Bearer
from scheduler.web.guard import PROBLEM, Guard, form_values, sign_in_routes

BY = "the status page"
_WORDS_MAX = 500


def site(app: App, bearer: Bearer | None, log: EventLog, actors: Actors | None = None) -> ASGIApp:
    """Return the guarded site; only ``actors`` may change something."""
    surface = Surface(app, BY, where="on the status page")
    written = pages.Pages(surface, actors)
    application = FastAPI(
        title="uff-scheduler",
        version=version("uff-scheduler"),
        description="What the scheduler does and plans. Everything is read-only; instants are integer UTC seconds.",
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        openapi_url="/api/openapi.json",
        redirect_slashes=False,
    )
    application.include_router(api.routes(surface))
    application.include_router(pages.asset_routes())
    application.include_router(sign_in_routes(bearer, written.environment, actors))
    if actors is not None:
        application.include_router(form_routes(surface, actors, log))
    application.include_router(written.router())

    @application.get("/livez", include_in_schema=False)
    @application.get("/health/live", tags=["health"])
    def live() -> Health:
        """Return that this process answers."""
        return Health(ok=True, problems=[])

    @application.get("/readyz", include_in_schema=False)
    @application.get("/health/ready", tags=["health"], responses={503: {"model": Health}})
    def ready() -> Any:
        """Return whether a daemon leads and finishes cycles; 503 and why, when not."""
        try:
            with surface.read() as tx:
                problems = questions.scheduler_health(surface, tx, surface.now)[2]
            health = Health(ok=not problems, problems=problems)
        except StoreFailure as error:
            log.error("web.store_failed", why=str(error))
            health = Health(ok=False, problems=["The database cannot be read."])
        return JSONResponse(health.model_dump(), 200 if health.ok else 503)

    @application.get("/metrics", response_class=PlainTextResponse, tags=["health"])
    def measured(request: Request) -> Response:
        """Return everything that is counted, in Prometheus' text format or as OpenMetrics."""
        text, content_type = metrics.metrics(surface, request.headers.get("accept", ""))
        return Response(text, media_type=content_type)

    _answer_failures(application, written, surface, log)
    return Guard(application, frozenset(app.settings.web.names), bearer, app.redact, actors is not None)


def _answer_failures(application: FastAPI, written: pages.Pages, surface: Surface, log: EventLog) -> None:
    def fault(request: Request, code: int, error: str, why: str, remedy: str = "") -> Response:
        failed = Fault.of(code, error, why, remedy)
        if request.url.path.startswith(("/api/", "/health/", "/livez", "/readyz", "/metrics")):
            return JSONResponse(failed.model_dump(), code, media_type=PROBLEM)
        return written.fault(failed, code)

    def missing(request: Request, error: Any) -> Response:
        why = ": ".join(filter(None, (error.where, error.why)))
        return fault(request, 404, error.what, why or error.what, error.remedy)

    def unreadable(request: Request, error: Any) -> Response:
        log.error("web.store_failed", why=str(error))
        return fault(request, 503, error.what, error.why, error.remedy)

    def invalid(request: Request, error: Any) -> Response:
        problems = [f"{problem['loc'][-1]}: {problem['msg']}" for problem in error.errors()]
        return fault(request, 422, _WHAT[422], "; ".join(problems))

    def refused(request: Request, error: Any) -> Response:
        # No route: the framework's message does not help.
        nowhere = error.status_code == 404 and not isinstance(error, HTTPException)
        why = "there is no such page" if nowhere else str(error.detail)
        return fault(request, error.status_code, _WHAT.get(error.status_code, "refused"), why)

    def impossible(request: Request, error: Any) -> Response:
        code, words = _IMPOSSIBLE[next(kind for kind in type(error).__mro__ if kind in _IMPOSSIBLE)]
        if isinstance(error, BadRequest) and request.method == "GET":
            code = 404  # its address names something that does not exist
        return fault(request, code, _WHAT.get(code, "refused"), words.format(error))

    def crashed(request: Request, error: Exception) -> Response:
        if (damage := surface.app.reading.explain(error)) is not None:
            return unreadable(request, damage)
        log.error("web.crashed", path=request.url.path, kind=type(error).__name__, why=str(error))
        return fault(request, 500, "this page failed", "it is a bug, and stands in the log", "Other pages may work")

    application.add_exception_handler(NotFound, missing)
    application.add_exception_handler(StoreFailure, unreadable)
    application.add_exception_handler(RequestValidationError, invalid)
    application.add_exception_handler(StarletteHTTPException, refused)
    for kind in _IMPOSSIBLE:
        application.add_exception_handler(kind, impossible)
    application.add_exception_handler(Exception, crashed)


_WHAT = {404: "not found", 405: "not allowed", 422: "bad request"}
_IMPOSSIBLE: dict[type, tuple[int, str]] = {
    ActionRefused: (403, "{0.why}. Reload the page and try again"),
    BadRequest: (422, "{0.what}"),
    Refusal: (409, "{0}"),
    Stale: (409, "it changed at the same moment. Look at it, then try again"),
    StoreError: (503, "the artifact store cannot be opened: {0}"),
}


# What may be changed on the page, by the same verbs as the port's.
def form_routes(surface: Surface, actors: Actors, log: EventLog) -> APIRouter:
    """Return the routes of all changes. Each is a form that is sent by POST and leads back to its page."""
    routes = APIRouter(include_in_schema=False)
    for verb in VERBS.values():
        if verb.who == "actors":
            address = PREFIX.removesuffix("/") + verb.address
            routes.add_api_route(address, _form(surface, verb, actors, log), methods=["POST"])
    return routes


def _form(surface: Surface, verb: Verb, actors: Actors, log: EventLog) -> Callable[..., Any]:
    async def acted(request: Request) -> Any:
        values = await form_values(request)
        form = {name: " ".join(printable(text[:_WORDS_MAX]).split()) for name, text in values.items()}
        page = request.url.path.removeprefix(PREFIX.removesuffix("/")).rpartition("/")[0]

        def act() -> None:
            actors.take(request, request.url.path, form.get("form", ""))
            fields = {name: text for name, text in form.items() if name in verb.takes.model_fields}
            verb.ask(surface, dict(checked(verb.takes, {**fields, **request.path_params}, texts=True)))
            facts = {name: request.path_params[name] for name in verb.takes.model_fields if name in request.path_params}
            log.info("web.acted", verb=verb.name.rpartition(".")[2], **facts)

        await run_in_threadpool(act)
        return RedirectResponse(quote(page), 303)

    return acted
