"""Site: the ASGI application of pages, JSON API, metrics and forms behind the guard, with its error answers."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from inspect import Signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import quote

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import Connection
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.types import ASGIApp

from jobs.lane_report import GPU_METRICS
from jobs.problem import NotFound, Refusal
from jobs.toml_file import read_toml
from platforms.artifacts.base import StoreError
from scheduler.app import App
from scheduler.report.chart import printable
from scheduler.service.outside.ports import EventLog
from scheduler.store import counts, queue_waits, runs
from scheduler.store.errors import Stale, StoreFailure
from scheduler.verbs import archive, questions
from scheduler.verbs.arguments import BadRequest, JobState, Week, alias_of, checked
from scheduler.verbs.shapes import Fault, Health
from scheduler.verbs.source import Source
from scheduler.verbs.surface import Surface, Verb, json_of
from scheduler.verbs.table import VERBS
from scheduler.views import models
from scheduler.views.weekly_report import render
from scheduler.web import pages
from scheduler.web.actors import PREFIX, ActionRefused, Actors, Bearer
from scheduler.web.guard import PROBLEM, Guard, form_values, sign_in_routes

BY = "the status page"
_WORDS_MAX = 500


def site(app: App, bearer: Bearer | None, log: EventLog, actors: Actors | None = None) -> ASGIApp:
    """Return the guarded application; only ``actors`` may change something."""
    surface = Surface(app, BY, where="on the status page")
    written = pages.Pages(surface, actors)
    application = FastAPI(
        title="uff-scheduler",
        version=version("uff-scheduler"),
        description="What the scheduler does and plans. Everything is read-only; instants are integer UTC seconds.",
        docs_url=None,  # the framework's pages load scripts from other sites
        redoc_url=None,
        openapi_url="/api/openapi.json",
        redirect_slashes=False,
    )
    application.include_router(api_routes(surface))
    application.include_router(pages.asset_routes())
    application.include_router(sign_in_routes(bearer, written.environment, actors))
    if actors is not None:
        application.include_router(form_routes(surface, actors, log))
    application.include_router(written.router())

    @application.get("/livez", include_in_schema=False)
    @application.get("/health/live", tags=["health"])
    def live() -> Health:
        """Report that this process answers."""
        return Health(ok=True, problems=[])

    @application.get("/readyz", include_in_schema=False)
    @application.get("/health/ready", tags=["health"], responses={503: {"model": Health}})
    def ready() -> Any:
        """Report whether a daemon leads and completes cycles; status 503 with the reason if not."""
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
        """Return all metrics in the Prometheus text format or as OpenMetrics."""
        text, content_type = metrics_text(surface, request.headers.get("accept", ""))
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
        # No such route: the message of the framework does not help.
        nowhere = error.status_code == 404 and not isinstance(error, HTTPException)
        why = "there is no such page" if nowhere else str(error.detail)
        return fault(request, error.status_code, _WHAT.get(error.status_code, "refused"), why)

    def impossible(request: Request, error: Any) -> Response:
        code, words = _IMPOSSIBLE[next(kind for kind in type(error).__mro__ if kind in _IMPOSSIBLE)]
        if isinstance(error, BadRequest) and request.method == "GET":
            code = 404  # the address names something that does not exist
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
    ActionRefused: (403, "{0}. Reload the page and try again"),
    BadRequest: (422, "{0.what}"),
    Refusal: (409, "{0}"),
    Stale: (409, "it changed at the same moment. Look at it, then try again"),
    StoreError: (503, "the artifact store cannot be opened: {0}"),
}


# Changes from the page, by the same verbs as those of the port.
def form_routes(surface: Surface, actors: Actors, log: EventLog) -> APIRouter:
    """Return the routes of all changes: forms sent by POST, which redirect to their page."""
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


# The JSON API: one GET address with typed JSON for each verb that reads.
_PROBLEM = {PROBLEM: {"schema": Fault.model_json_schema()}}
_ALWAYS: dict[int | str, dict[str, Any]] = {
    404: {"description": "There is nothing of this name.", "content": _PROBLEM},
    422: {"description": "The question cannot be understood.", "content": _PROBLEM},
    503: {"description": "The database cannot be read now.", "content": _PROBLEM},
}

_LISTS = {
    alias_of(name) for verb in VERBS.values() for name, one in verb.keywords.items() if "list[" in str(one.annotation)
}


def api_routes(surface: Surface) -> APIRouter:
    """Return the routes below /api/v1."""
    api = APIRouter(prefix="/api/v1", responses=_ALWAYS, dependencies=[Depends(_refuse_repeated)])
    for verb in VERBS.values():
        if verb.who == "readers":
            api.add_api_route(verb.address, _endpoint(surface, verb), name=verb.name.replace(".", "_"), methods=["GET"])

    @api.get("/reports/{week}/text", response_class=PlainTextResponse)
    def report_text(week: Week, form: Literal["text", "markdown"] = "text") -> str:
        """Return the report of a week as text."""
        return render(archive.report(surface, week), form)

    return api


def _refuse_repeated(request: Request) -> None:
    """Refuse a parameter that is there twice, of which FastAPI would silently read the last, unless it is a list."""
    times = Counter(name for name, _ in request.query_params.multi_items())
    if repeated := sorted(name for name, number in times.items() if number > 1 and name not in _LISTS):
        raise HTTPException(422, f"{', '.join(repeated)[:200]} is given more than once")


def _endpoint(surface: Surface, verb: Verb) -> Callable[..., Any]:
    """Return a verb as an endpoint of FastAPI."""

    def endpoint(**values: Any) -> Response:
        return Response(json_of(verb.ask(surface, values), verb.view), media_type="application/json")

    parameters = [
        one
        if f"{{{name}}}" in verb.address
        else one.replace(annotation=Annotated[one.annotation, Query(alias=alias_of(name))])
        for name, one in verb.keywords.items()
    ]
    endpoint.__signature__ = Signature(  # type: ignore[attr-defined]  # read by FastAPI
        parameters, return_annotation=verb.answers
    )
    endpoint.__doc__ = verb.answer.__doc__
    return endpoint


# Metrics in the text formats of Prometheus; metrics.toml has the help text of each name.
_TOTALS_SECONDS = 15
_HELP = read_toml(Path(__file__).with_name("metrics.toml"))
_UNITS = {"seconds": ("seconds", 1), "dollars": ("microdollars", 1_000_000)}
"""The units of metrics, each with the unit of our values and how many of these one of it has."""

Sample = tuple[dict[str, str], float]


@dataclass(frozen=True, slots=True)
class _Read(Collector):
    """A collector for prometheus_client of metrics that were read already."""

    metrics: list[Metric]

    def collect(self) -> Iterable[Metric]:
        """Return the metrics with samples."""
        return (metric for metric in self.metrics if metric.samples)


def metrics_text(source: Source, accept: str) -> tuple[bytes, str]:
    """Return all metrics and the content type: OpenMetrics if ``accept`` asks for it. Raises StoreFailure."""
    now = source.now
    with source.read() as tx:
        samples = [*_daemon(source, tx, now), *_work(source, tx), *_pools(source, tx, now)]
        # Sums over whole tables are cached for the usual scrape interval.
        samples += source.kept("models", now // _TOTALS_SECONDS, lambda: list(_models(tx)))
        samples += source.kept("totals", now // _TOTALS_SECONDS, lambda: list(_totals(tx)))
    encode, content_type = choose_encoder(accept)
    return encode(_Read(samples)), content_type


def _daemon(source: Source, tx: Connection, now: int) -> Iterable[Metric]:
    leader, cycled_at, problems = questions.scheduler_health(source, tx, now)
    plan = source.plan(tx)
    yield _metric("uff_build_info", [({"version": version("uff-scheduler")}, 1)])
    yield _one("uff_ready", float(not problems))
    yield _one("uff_leader", float(leader is not None))
    if cycled_at is not None:
        yield _one("uff_last_cycle_timestamp_seconds", cycled_at)
    yield _one("uff_scheduled_time_seconds", now)
    if plan is not None:
        yield _one("uff_plan_timestamp_seconds", plan.made_at)
        yield _one("uff_plan_value", plan.value)
        yield _one("uff_plan_sessions", len(plan.placements))
        if plan.bound is not None:
            yield _one("uff_plan_bound", plan.bound)
    yield _one("uff_needs", len(questions.newest_needs(source, tx, now)))


def _work(source: Source, tx: Connection) -> Iterable[Metric]:
    states = counts.jobs_by_state(tx)
    yield _metric("uff_jobs", [({"state": s}, states.get(s, 0)) for s in get_args(JobState)])
    records = source.kept("progress", source.news(tx), lambda: counts.progress(tx))
    yield _metric("uff_job_steps", [({"job": n}, d) for n, d, _ in records])
    yield _metric("uff_job_target_steps", [({"job": n}, t) for n, _, t in records])
    yield _one("uff_outbox_waiting", counts.messages_waiting(tx))


def _models(tx: Connection) -> Iterable[Metric]:
    all_models = models.models(tx)
    states = Counter(version.state for one in all_models for version in one.versions)
    yield _metric("uff_versions", [({"state": s}, n) for s, n in states.items()])
    listed = [version for one in all_models for version in one.versions if version.in_force]
    yield _metric("uff_version_in_force", [({"model": v.model}, v.number) for v in listed])
    costs = [(version, models.cost(tx, version)) for version in listed]
    for unit, (name, scale) in _UNITS.items():
        samples = [({"model": v.model}, getattr(cost, name) / scale) for v, cost in costs]
        yield _metric(f"uff_version_cost_{unit}", samples)


def _totals(tx: Connection) -> Iterable[Metric]:
    ended = counts.lanes_by_outcome(tx)
    yield _metric("uff_runs_ended_total", [({"pool": pool, "outcome": how}, n) for (pool, how), n in ended.items()])
    yield _metric("uff_checkpoints", [({"state": s}, c) for s, c in counts.checkpoints_by_state(tx).items()])
    yield _metric("uff_spent_seconds_total", [({"pool": p}, s) for p, s in counts.spent_seconds(tx).items()])


def _pools(source: Source, tx: Connection, now: int) -> Iterable[Metric]:
    states = questions.pools(source, tx, now)
    yield _metric("uff_pool_open", [({"pool": p.name}, p.state == "open") for p in states])
    yield _metric("uff_pool_sessions", [({"pool": p.name}, p.sessions_live) for p in states])
    waiting = Counter(run.pool for run in queue_waits.attach(tx, runs.live(tx)) if run.wait is not None)
    yield _metric("uff_pool_sessions_waiting", [({"pool": p.name}, waiting[p.name]) for p in states])
    for name in GPU_METRICS:
        yield _metric(
            f"uff_pool_{name}", [({"pool": p.name}, v) for p in states if (v := getattr(p, name)) is not None]
        )
    meters = questions.meters(source, tx, now)
    for part in ("limit", "used", "held", "free"):
        for unit, (name, scale) in _UNITS.items():
            values = [(one, getattr(one, part) / scale) for one in meters if one.unit == name]
            yield _metric(f"uff_quota_{part}_{unit}", [({"pool": m.pool, "quota": m.quota}, v) for m, v in values])


def _one(name: str, value: float) -> Metric:
    return _metric(name, [({}, value)])


def _metric(name: str, samples: Iterable[Sample]) -> Metric:
    metric = Metric(name.removesuffix("_total"), _HELP[name], "counter" if name.endswith("_total") else "gauge")
    for labels, value in samples:
        metric.add_sample(name, labels, value)
    return metric
