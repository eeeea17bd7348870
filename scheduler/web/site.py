"""Site: everything put together behind the guard, and what is answered when something fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException

from scheduler.store.errors import StoreFailure
from scheduler.store.jobs import UnknownJob
from scheduler.store.runs import UnknownRun
from scheduler.store.versions import UnknownVersion
from scheduler.views.plan_history import NoPlanToCompare
from scheduler.web import actions, api, assets, metrics, pages, sign_in, status
from scheduler.web.guard import Guard
from scheduler.web.log_tail import LogTails
from scheduler.web.shapes import Fault, Health
from scheduler.web.source import Source

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from scheduler.app import App
    from scheduler.service.outside.ports import Log
    from scheduler.web.actors import Actors
    from scheduler.web.bearer import Bearer

_MISSING = (UnknownJob, UnknownRun, UnknownVersion, NoPlanToCompare)


def site(app: App, bearer: Bearer | None, log: Log, actors: Actors | None = None) -> ASGIApp:
    """Return the guarded site; ``actors`` may change something, and nobody else.

    Raises StoreFailure when there is no database it can read.
    """
    source = Source(app)
    tails = LogTails(source)
    written = pages.Pages(source, tails, actors)
    found = FastAPI(
        title="uff-scheduler",
        version="1",
        description="What the scheduler does and plans. Everything is read-only; instants are integer UTC seconds.",
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        openapi_url="/api/openapi.json",
        redirect_slashes=False,
    )
    for routes in api.routers(source, tails):
        found.include_router(routes)
    found.include_router(assets.router())
    found.include_router(sign_in.router(bearer, written.environment, actors))
    if actors is not None:
        found.include_router(actions.router(app, actors, log))
    found.include_router(written.router())

    @found.get("/health/live", tags=["health"])
    def live() -> Health:
        """Return that this process answers."""
        return Health(ok=True, problems=[])

    @found.get("/health/ready", tags=["health"], responses={503: {"model": Health}})
    def ready() -> Any:
        """Return whether a daemon leads and finishes cycles; 503 and why, when not."""
        try:
            health = status.health(source)
        except StoreFailure as error:
            log.error("web.store_failed", why=str(error))
            health = Health(ok=False, problems=["The database cannot be read."])
        return JSONResponse(health.model_dump(), 200 if health.ok else 503)

    @found.get("/metrics", response_class=PlainTextResponse, tags=["health"])
    def measured() -> Response:
        """Return everything that is counted, in Prometheus' text format."""
        return Response(metrics.metrics(source), media_type=metrics.CONTENT_TYPE)

    _answer_failures(found, written, source, log)
    return Guard(found, frozenset(app.settings.web.names), bearer, app.redact, actors is not None)


def _answer_failures(found: FastAPI, written: pages.Pages, source: Source, log: Log) -> None:
    def fault(request: Request, code: int, error: str, why: str, remedy: str) -> Response:
        told = Fault(error=error, why=why, remedy=remedy)
        if request.url.path.startswith(("/api/", "/health/", "/metrics")):
            return JSONResponse(told.model_dump(), code)
        return written.fault(told, code)

    def missing(request: Request, error: Exception) -> Response:
        if isinstance(error, StoreFailure):
            return fault(request, 404, error.what, error.why, error.remedy)
        return fault(request, 404, "nothing to compare", str(error), "")

    def unreadable(request: Request, error: Exception) -> Response:
        log.error("web.store_failed", why=str(error))
        told = error if isinstance(error, StoreFailure) else None
        return fault(
            request, 503, told.what if told else "no database", told.why if told else "", told.remedy if told else ""
        )

    def invalid(request: Request, error: Exception) -> Response:
        problems = error.errors() if isinstance(error, RequestValidationError) else []
        why = "; ".join(f"{problem['loc'][-1]}: {problem['msg']}" for problem in problems)
        return fault(request, 422, "bad request", why, "")

    def refused(request: Request, error: Exception) -> Response:
        code = error.status_code if isinstance(error, StarletteHTTPException) else 500
        why = str(error.detail) if isinstance(error, HTTPException | StarletteHTTPException) else ""
        if code == 404 and not isinstance(error, HTTPException):  # no route: what the framework says helps nobody
            why = "there is no such page"
        what = {404: "not found", 405: "not allowed", 422: "bad request"}.get(code, "refused")
        return fault(request, code, what, why, "")

    def crashed(request: Request, error: Exception) -> Response:
        if (damage := source.app.reading.explain(error)) is not None:
            return unreadable(request, damage)
        log.error("web.crashed", path=request.url.path, kind=type(error).__name__, why=str(error))
        return fault(request, 500, "this page failed", "it is a bug, and stands in the log", "Other pages may work")

    for kind in _MISSING:
        found.add_exception_handler(kind, missing)
    found.add_exception_handler(StoreFailure, unreadable)
    found.add_exception_handler(RequestValidationError, invalid)
    found.add_exception_handler(StarletteHTTPException, refused)
    found.add_exception_handler(Exception, crashed)
