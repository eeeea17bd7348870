"""Site: everything put together behind the guard, and what is answered when something fails."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Literal
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from jobs.problem import NotFound, Refusal
from jobs.ranges import RANGES
from platforms.artifacts.base import StoreError
from scheduler.app import App
from scheduler.report.chart import printable
from scheduler.service.outside.ports import EventLog
from scheduler.service.requests import queue, sessions
from scheduler.store.errors import Stale, StoreFailure
from scheduler.wake import wake
from scheduler.web import api, metrics, pages, questions
from scheduler.web.actors import PREFIX, ActionRefused, Actors, Bearer
from scheduler.web.guard import PROBLEM, Guard, sign_in_routes
from scheduler.web.log_tail import LogTails
from scheduler.web.shapes import Fault, Health
from scheduler.web.source import Source

BY = "the status page"
_BODY_MAX_BYTES = 4_096
_WORDS_MAX = 500

JobVerb = Literal["hold", "release", "cancel", "priority"]


def site(app: App, bearer: Bearer | None, log: EventLog, actors: Actors | None = None) -> ASGIApp:
    """Return the guarded site; only ``actors`` may change something.

    Raises StoreFailure when there is no database it can read.
    """
    source = Source(app)
    tails = LogTails(source)
    written = pages.Pages(source, tails, actors)
    application = FastAPI(
        title="uff-scheduler",
        version=version("uff-scheduler"),
        description="What the scheduler does and plans. Everything is read-only; instants are integer UTC seconds.",
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        openapi_url="/api/openapi.json",
        redirect_slashes=False,
    )
    for routes in api.routers(source, tails):
        application.include_router(routes)
    application.include_router(pages.asset_routes())
    application.include_router(sign_in_routes(bearer, written.environment, actors))
    if actors is not None:
        application.include_router(router(app, actors, log))
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
            with source.read() as tx:
                problems = questions.scheduler_health(source, tx, source.now)[2]
            health = Health(ok=not problems, problems=problems)
        except StoreFailure as error:
            log.error("web.store_failed", why=str(error))
            health = Health(ok=False, problems=["The database cannot be read."])
        return JSONResponse(health.model_dump(), 200 if health.ok else 503)

    @application.get("/metrics", response_class=PlainTextResponse, tags=["health"])
    def measured(request: Request) -> Response:
        """Return everything that is counted, in Prometheus' text format or as OpenMetrics."""
        text, content_type = metrics.metrics(source, request.headers.get("accept", ""))
        return Response(text, media_type=content_type)

    _answer_failures(application, written, source, log)
    return Guard(application, frozenset(app.settings.web.names), bearer, app.redact, actors is not None)


def _answer_failures(application: FastAPI, written: pages.Pages, source: Source, log: EventLog) -> None:
    def fault(request: Request, code: int, error: str, why: str, remedy: str) -> Response:
        failed = Fault(status=code, title=error, detail=why, error=error, why=why, remedy=remedy)
        if request.url.path.startswith(("/api/", "/health/", "/livez", "/readyz", "/metrics")):
            return JSONResponse(failed.model_dump(), code, media_type=PROBLEM)
        return written.fault(failed, code)

    def missing(request: Request, error: Exception) -> Response:
        if isinstance(error, StoreFailure):
            return fault(request, 404, error.what, error.why, error.remedy)
        return fault(request, 404, "nothing to compare", str(error), "")

    def unreadable(request: Request, error: Exception) -> Response:
        log.error("web.store_failed", why=str(error))
        words = (error.what, error.why, error.remedy) if isinstance(error, StoreFailure) else ("no database", "", "")
        return fault(request, 503, *words)

    def invalid(request: Request, error: Exception) -> Response:
        problems = error.errors() if isinstance(error, RequestValidationError) else []
        why = "; ".join(f"{problem['loc'][-1]}: {problem['msg']}" for problem in problems)
        return fault(request, 422, "bad request", why, "")

    def refused(request: Request, error: Exception) -> Response:
        code = error.status_code if isinstance(error, StarletteHTTPException) else 500
        why = str(error.detail) if isinstance(error, HTTPException | StarletteHTTPException) else ""
        if code == 404 and not isinstance(error, HTTPException):  # no route: the framework's message does not help
            why = "there is no such page"
        what = {404: "not found", 405: "not allowed", 422: "bad request"}.get(code, "refused")
        return fault(request, code, what, why, "")

    def crashed(request: Request, error: Exception) -> Response:
        if (damage := source.app.reading.explain(error)) is not None:
            return unreadable(request, damage)
        log.error("web.crashed", path=request.url.path, kind=type(error).__name__, why=str(error))
        return fault(request, 500, "this page failed", "it is a bug, and stands in the log", "Other pages may work")

    application.add_exception_handler(NotFound, missing)
    application.add_exception_handler(StoreFailure, unreadable)
    application.add_exception_handler(RequestValidationError, invalid)
    application.add_exception_handler(StarletteHTTPException, refused)
    application.add_exception_handler(Exception, crashed)


# What may be changed on the page, by the same requests as the command line's.
def router(app: App, actors: Actors, log: EventLog) -> APIRouter:
    """Return the routes of all actions. Each is a form that is sent by POST and leads back to its page."""
    routes = APIRouter(include_in_schema=False)

    async def acted(request: Request, do: Callable[[dict[str, str]], object], back: str) -> Any:
        form = await _form_values(request)

        def act() -> None:
            actors.take(request, request.url.path, form.get("form", ""))
            do(form)
            wake(app.settings.state_dir)

        return await _done(act, back)

    @routes.post(PREFIX + "jobs/{name}/{verb}")
    async def on_job(request: Request, name: str, verb: JobVerb) -> Any:
        def change(form: dict[str, str]) -> None:
            _change(app, name, verb, form)
            log.info("web.acted", verb=verb, job=name)

        return await acted(request, change, f"/jobs/{quote(name)}")

    @routes.post(PREFIX + "runs/{key}/stop")
    async def on_run(request: Request, key: str) -> Any:
        def stop(form: dict[str, str]) -> None:
            why = app.redact(form.get("why", "")) or "stopped on the status page"
            sessions.stop(app.database, app.artifacts, key, why, app.clock.now(), BY)
            log.info("web.acted", verb="stop", run=key)

        return await acted(request, stop, f"/runs/{quote(key)}")

    return routes


def _change(app: App, name: str, verb: JobVerb, form: dict[str, str]) -> None:
    """Do it. Raises UnknownJob, Refusal, Stale, HTTPException 422."""
    now = app.clock.now()
    match verb:
        case "hold":
            queue.hold(app.database, name, app.redact(form.get("why", "")) or "held on the status page", now, BY)
        case "release":
            queue.release(app.database, name, now, BY)
        case "cancel":
            queue.cancel(app.database, name, now, BY)
        case "priority":
            queue.change(app.database, name, now, BY, weight=_weight(form.get("weight", "")))


def _weight(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not RANGES["weight"].holds(value):
        raise HTTPException(422, f"a weight is a number in the range {RANGES['weight']}")
    return value


async def _done(act: Any, back: str) -> RedirectResponse:
    try:
        await run_in_threadpool(act)
    except ActionRefused as error:
        raise HTTPException(403, f"{error.why}. Reload the page and try again") from None
    except Refusal as error:
        raise HTTPException(409, str(error)) from None
    except StoreError as error:
        raise HTTPException(503, f"the artifact store cannot be opened: {error}") from None
    except Stale:
        raise HTTPException(409, "it changed at the same moment. Look at it, then try again") from None
    return RedirectResponse(back, 303)


async def _form_values(request: Request) -> dict[str, str]:
    """Return a form's fields, each once and cut to a sentence. Raises HTTPException 413, 400."""
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > _BODY_MAX_BYTES:
                raise HTTPException(413, "the form is too large")
    except ClientDisconnect:
        raise HTTPException(400, "the form did not come in whole") from None
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=10)
    except ValueError:
        raise HTTPException(422, "the form has too many fields") from None
    return {name: " ".join(printable(values[0][:_WORDS_MAX]).split()) for name, values in fields.items()}
