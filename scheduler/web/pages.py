"""The HTML pages. Every page works without JavaScript; a script refreshes the parts marked ``data-live``."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from functools import cache, lru_cache, partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from sqlalchemy import Connection

from jobs.lane_report import GPU_METRICS, GpuUse
from jobs.nouns.window import DAY, Window
from jobs.payload.trainers.tuning.data.tally import facts_told
from jobs.problem import NotFound
from jobs.size import size
from scheduler.notify.mail import WEEKLY
from scheduler.report.burn_down import amount, burn_down_svg
from scheduler.report.chart import STYLE, hues_of, local, short
from scheduler.report.document import document_of
from scheduler.report.loss_curve import compare_losses_svg, loss_curve_svg
from scheduler.report.timeline import timeline_svg
from scheduler.store import jobs, outbox, versions
from scheduler.verbs import archive, questions
from scheduler.verbs.arguments import Channel, JobState, Page, Week
from scheduler.verbs.arguments import Name as JobName
from scheduler.verbs.questions import newest_needs, pools, scheduler_health, training_now
from scheduler.verbs.shapes import Fault
from scheduler.verbs.surface import Surface
from scheduler.views import models as views
from scheduler.views.coming_week import alike_gaps, week_timeline
from scheduler.views.long_work import long_work
from scheduler.views.training import TrainingProgress
from scheduler.web.actors import Actors, forms

Day = Annotated[str | None, Query(alias="from", max_length=10)]
Name = Annotated[str | None, Query(max_length=200)]
Jobs = Annotated[str, Query(max_length=2_000)]
_COMPARED_MAX = 8
# Keys of job files that differ from those of stored definitions.
_WRITTEN = {"weight": "priority", "gate.parent": "after.job", "gate.fraction": "after.fraction"}
_PLANNED_SHOWN = 100
_GAPS_SHOWN = 12
# A page has at most 100 kB: the larger the picture, the fewer sessions are in the table beside it.
_SESSIONS_SHOWN, _SESSIONS_MIN = 60, 10
_PICTURE_BYTES, _SESSION_BYTES = 68_000, 500
_ROWS_SHOWN = 100
_CURVES_SHOWN = 24
_LINES_SHOWN = 30
_LOG_PATIENCE_SECONDS = 1.0  # if a platform takes longer, the script of the page fetches the rest
Words = Annotated[str, Query(max_length=200)]
Number = Annotated[int, Query(ge=1, le=1 << 20)]
Tokens = Annotated[float, Query(ge=1, le=1e15)]
MACHINES = "5060ti, 5060ti x2, 4090, 5090, h100"
_MACHINES_MAX = 8
NOTHING = "\N{EN DASH}"
_HOURS_BEFORE = 8
_DAY_FORM = "%Y-%m-%d"  # as in addresses
_LEVEL = 0.002  # a smaller relative change of a loss is shown as level


def advice(model: str, on: str, method: str, seq: int, tokens: float) -> dict[str, Any]:
    """Return the advice of the page; only shipped models are allowed, so that visitors cannot name local files."""
    from jobs.advice.choice import Wishes, compare, picture
    from jobs.advice.shape import METHODS, find_cards, shipped

    shapes = shipped()
    names = sorted(name for name in shapes if "/" not in name)
    compared: list[Any] = []
    trouble, drawn = "", ""
    shape = shapes.get(model.strip().lower())
    words = [word.strip() for word in on.split(",") if word.strip()][:_MACHINES_MAX]
    try:
        machines = [(*find_cards(word), None) for word in words]
        if shape is None:
            trouble = f"{model}: no such model is shipped. The command reads any config.json: schedctl advise --help"
        elif machines:
            chosen = tuple(one for one in METHODS if one == method)
            compared = compare(shape, machines, Wishes(seq=seq, tokens=tokens, methods=chosen), ())
            drawn = picture(compared)
    except NotFound as error:
        trouble = str(error)
    return {
        "asked": {"model": model, "on": on, "method": method, "seq": seq, "tokens": tokens},
        "names": names,
        "methods": METHODS,
        "found": compared,
        "picture": drawn,
        "trouble": trouble,
    }


class Pages:
    """The pages and how they are written."""

    def __init__(self, surface: Surface, actors: Actors | None = None) -> None:
        self._source = surface
        self._actors = actors
        self.environment = Environment(
            loader=PackageLoader("scheduler.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self.environment.filters.update(filters(surface.zone))
        self.environment.globals.update(asset=asset_address, zone=surface.zone, hue=self._hue)
        self._hues: Mapping[str, int] = {}

    def router(self) -> APIRouter:
        """Return the routes of all pages."""
        routes = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
        for path, page in (
            ("/", self.overview),
            ("/queue", self.queue),
            ("/jobs/{name}", self.job),
            ("/compare", self.compare),
            ("/runs", self.runs),
            ("/runs/{key}", self.run),
            ("/models", self.models),
            ("/models/{name}", self.version),
            ("/quota", self.quota),
            ("/plan", self.plan),
            ("/ledger", self.ledger),
            ("/advise", self.advise),
            ("/reports", self.reports),
            ("/reports/{label}", self.report),
            ("/reports/{label}/letters/{channel}", self.message),
        ):
            own = path in {"/jobs/{name}", "/runs/{key}"}  # with forms of this reader
            routes.add_api_route(path, page if own else self._shared(page), methods=["GET"], response_model=None)
        return routes

    def _shared(self, page: Callable[..., HTMLResponse]) -> Callable[..., HTMLResponse]:
        """Return ``page`` with its answer shared between requests of the same second."""

        @wraps(page)
        def answer(**parameters: Any) -> HTMLResponse:
            source = self._source
            with source.read() as tx:
                version = source.revision(tx), source.now
            return source.kept((page.__name__, *parameters.items()), version, lambda: page(**parameters))

        return answer

    def fault(self, problem: Fault, code: int) -> HTMLResponse:
        """Return an error page; it reads nothing, so it cannot fail for the same reason."""
        written = self.environment.get_template("fault.html").render(told=problem, code=code)
        return HTMLResponse(written.encode("utf-8", "replace"), code)

    def overview(self, day: Day = None, span: Literal["day", "week"] = "week") -> HTMLResponse:
        """The week or the day, what runs, what waits, what is left, and the actions required."""
        source, now = self._source, self._source.now
        long = questions.DAYS if span == "week" else 1
        if day is not None:
            window = questions.span_from(questions.day_of(day), source.zone, long)
        else:
            full_hour = now // 3_600 * 3_600 - _HOURS_BEFORE * 3_600  # the last eight hours and the next sixteen
            window = questions.span_around(now, source.zone) if span == "week" else Window(full_hour, full_hour + DAY)
        with source.read() as tx:
            # The line that marks now moves by at most a pixel a minute. Past weeks do not change.
            settled = window.end < now - questions.SETTLED_SECONDS
            version = ("settled", now // 600) if settled else (source.news(tx), now // 60)
            timeline = source.kept("timeline", (window, version), lambda: questions.timeline(source, tx, window, now))
            draw = partial(timeline_svg, timeline, source.zone, link="/runs/")
            picture = source.kept("picture", (window, version), draw)
            needs = newest_needs(source, tx, now)
            training = training_now(source, tx, needs, now)
            return self._page(
                "overview.html",
                "overview",
                tx,
                span=window,
                by=span,
                day=day,
                earlier=local(window.start - DAY * (long - 1) - DAY // 2, source.zone, _DAY_FORM),
                later=local(window.end + (DAY // 2 if day or span == "week" else 0), source.zone, _DAY_FORM),
                around_now=day is None,
                picture=picture,
                most=max(_SESSIONS_MIN, min(_SESSIONS_SHOWN, (_PICTURE_BYTES - len(picture)) // _SESSION_BYTES)),
                sessions=sorted(timeline.sessions, key=lambda session: (session.start, session.pool), reverse=True),
                meters=questions.meters(source, tx, now),
                sparks=questions.sparks(source, tx, now),
                pools=pools(source, tx, now),
                training=training,
                verdict=training.line,
                needs=needs,
                work=long_work(tx),
            )

    def queue(self, page: Page = 1, state: JobState | None = None, name: Name = None) -> HTMLResponse:
        """The jobs with what each waits for."""
        name = name or ""
        listing = questions.queue_list(self._source, page, state=state, name=name)
        total = sum(listing.states.values())
        return self._page(
            "queue.html", "queue", found=listing, order=questions.STATES, everything=total, state=state, name=name
        )

    def job(self, request: Request, name: JobName, scale: Literal["linear", "log"] = "linear") -> HTMLResponse:
        """One job with its loss curve, checkpoints and sessions."""
        detail, log = questions.queue_show(self._source, name), scale == "log"
        losses, training, marks = detail.losses, detail.told, detail.sessions
        picture = loss_curve_svg(detail.name, losses, detail.target_step, training=training, marks=marks, log=log)
        act = forms(self._actors, request)
        return self._page("job.html", "queue", job=detail, picture=picture, log=log, act=act)

    def compare(self, jobs: Jobs = "", scale: Literal["linear", "log"] = "linear") -> HTMLResponse:
        """Several jobs beside each other: their losses in one picture, and the settings that differ."""
        names = [name.strip() for name in jobs.split(",") if name.strip()]
        details = [questions.queue_show(self._source, name) for name in dict.fromkeys(names[:_COMPARED_MAX])]
        curves = {one.name: one.losses if len(one.losses) > 1 else one.told for one in details}
        settings = [dict(_settings(one.spec)) for one in details]
        keys = dict.fromkeys(key for each in settings for key in each if key not in {"name", "code.source"})
        rows = [(key, [each.get(key, NOTHING) for each in settings]) for key in keys]
        return self._page(
            "compare.html",
            "queue",
            jobs=details,
            picture=compare_losses_svg(curves, log=scale == "log"),
            log=scale == "log",
            hues=hues_of(curves),
            lowest={name: min((loss for _, loss in points), default=None) for name, points in curves.items()},
            differences=[(_WRITTEN.get(key, key), values) for key, values in rows if len(set(values)) > 1],
        )

    def runs(self, page: Page = 1, pool: Name = None, job: Name = None) -> HTMLResponse:
        """The sessions, newest first."""
        listing = questions.runs_list(self._source, page, pool=pool or None, job=job or None)
        pools = sorted(self._source.pools)
        return self._page("runs.html", "runs", found=listing, pool=pool or "", job=job or "", pools=pools)

    def run(self, request: Request, key: JobName) -> HTMLResponse:
        """One session with its log."""
        detail = questions.runs_show(self._source, key)
        log = self._source.tails.read(key, patience_seconds=_LOG_PATIENCE_SECONDS)
        return self._page("run.html", "runs", run=detail, log=log, act=forms(self._actors, request))

    def models(self) -> HTMLResponse:
        """Versions of models, and who began with which."""
        with self._source.read() as tx:
            all_models = views.models(tx)
            marks = {one.in_force: "promoted" for one in all_models if one.in_force}
            return self._page("models.html", "models", tx, found=all_models, lines=views.tree(all_models, marks))

    def version(self, name: JobName) -> HTMLResponse:
        """One version, with what it was judged by."""
        with self._source.read() as tx:
            return self._page("model.html", "models", tx, found=views.facts(tx, versions.named(tx, name)))

    def quota(self) -> HTMLResponse:
        """What is left of every quota."""
        source, now = self._source, self._source.now
        with source.read() as tx:
            charts = questions.burn_downs(source, tx, now)
            pictures = [burn_down_svg(chart, source.zone) for chart in charts]
            return self._page(
                "quota.html",
                "quota",
                tx,
                charts=list(zip(charts, pictures, strict=True)),
                meters=questions.meters(source, tx, now),
                pools=pools(source, tx, now),
            )

    def plan(self) -> HTMLResponse:
        """The newest plan and what it changed."""
        with self._source.read() as tx:
            plan = self._source.plan(tx)
        try:
            difference = questions.plan_difference(self._source) if plan else None
        except NotFound:
            difference = None
        with self._source.read() as tx:
            week = questions.week_ahead(self._source, tx)
            training = training_now(self._source, tx, (), self._source.now)
            open_ = [job for job in training.jobs if job.state not in {"done", "cancelled"}]
            sessions_ = Counter(lane.job for place in plan.placements for lane in place.lanes) if plan else Counter()
            return self._page(
                "plan.html",
                "plan",
                tx,
                plan=plan,
                difference=difference,
                most=_PLANNED_SHOWN,
                jobs=open_,
                sessions=sessions_,
                picture=timeline_svg(week_timeline(week, self._source.pools, tx), self._source.zone) if week else "",
                gaps=alike_gaps(week)[:_GAPS_SHOWN] if week else [],
            )

    def ledger(self, page: Page = 1, pool: Name = None) -> HTMLResponse:
        """The facts about metered time."""
        listing = questions.ledger_list(self._source, page, pool=pool or None)
        return self._page("ledger.html", "ledger", found=listing, pool=pool or "", pools=sorted(self._source.pools))

    def advise(
        self,
        model: Words = "deepseek-coder-6.7b",
        on: Words = MACHINES,
        method: Words = "",
        seq: Number = 2_048,
        tokens: Tokens = 20e6,
    ) -> HTMLResponse:
        """What a model needs on machines that may not be here."""
        return self._page("advise.html", "advise", **advice(model, on, method, seq, tokens))

    def reports(self) -> HTMLResponse:
        """The weeks that have a report."""
        return self._page("reports.html", "reports", found=archive.reports(self._source))

    def report(self, label: Week) -> HTMLResponse:
        """One week's report."""
        report = archive.report(self._source, label)
        curves = [
            (job.name, loss_curve_svg(job.name, job.losses, job.target_step, height=120, whole=False))
            for job in report.jobs
            if len(job.losses) > 1
        ][:_CURVES_SHOWN]
        with self._source.read() as tx:
            return self._page(
                "report.html",
                "reports",
                tx,
                report=report,
                first_day=local(report.start, self._source.zone, _DAY_FORM),
                sent=outbox.sent_by_period(tx, WEEKLY).get(label, {}),
                document=document_of(report),
                curves=[(name, picture) for name, picture in curves if picture],
                most=_ROWS_SHOWN,
                most_lines=_LINES_SHOWN,
            )

    def message(self, label: Week, channel: Channel) -> HTMLResponse:
        """One week's report as sent: a message stands alone, words stand in a page of ours."""
        written = archive.message_page(self._source, label, channel)
        if written is not None:
            return HTMLResponse(written, headers={"content-security-policy": archive.LETTER_POLICY})
        return self._page("message.html", "reports", message=archive.message(self._source, label, channel))

    def _page(self, template: str, place: str, tx: Connection | None = None, **context: Any) -> HTMLResponse:
        """Return a rendered page; it reads in ``tx``, or in its own transaction."""
        source, now = self._source, self._source.now
        with source.read() if tx is None else nullcontext(tx) as read:
            leader, cycled_at, problems = scheduler_health(source, read, now)
            self._hues = source.kept("hues", source.news(read), lambda: hues_of(jobs.names_by_age(read)))
            state = {"now": now, "leader": leader, "cycled_at": cycled_at, "problems": problems}
            written = self.environment.get_template(template).render(
                place=place, revision=source.revision(read), **state, **context
            )
        return HTMLResponse(written.encode("utf-8", "replace"))  # odd file names contain lone surrogates

    def _hue(self, name: str) -> str:
        """Return the CSS classes of a model's colour."""
        return f" hue h{self._hues[name]}" if name in self._hues else ""


def _settings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, text) of each setting of a job's definition that is set."""
    match value:
        case dict():
            for name, inner in value.items():
                yield from _settings(inner, f"{key}.{name}" if key else name)
        case list() | tuple() if any(isinstance(inner, dict | list | tuple) for inner in value):
            for number, inner in enumerate(value, 1):
                yield from _settings(inner, f"{key}.{number}")
        case list() | tuple():
            yield key, " ".join(map(str, value)) or NOTHING
        case _ if value is not None:
            yield key, str(value)


# Template filters for instants, durations, amounts and counts.
def filters(zone: str) -> dict[str, Callable[..., Any]]:
    """Return the template filters; instants are shown in ``zone``."""
    return {
        "instant": lambda at: instant(at, zone),
        "clock": lambda at: instant(at, zone, "%H:%M"),
        "day": lambda at: instant(at, zone, "%a %-d %b"),
        "date": lambda at: instant(at, zone, "%a %-d %b %Y"),
        "full": lambda at: instant(at, zone, "%a %-d %b %Y %H:%M"),
        "duration": duration,
        "ago": ago,
        "amount": amount,
        "count": lambda number: NOTHING if number is None else f"{number:,}",
        "short": short,
        "size": size,
        "gpu_use": lambda beat: GpuUse(**{name: beat.get(name) for name in GPU_METRICS}).gpu_use,
        "share": share,
        "loss": lambda value: NOTHING if value is None else f"{value:.4g}",
        "arrow": arrow,
        "learned": facts_told,
        "spark": spark,
        "plain": plain,
        "without_states": lambda data: {name: value for name, value in data.items() if name not in {"from", "to"}},
    }


def instant(at: int | None, zone: str, form: str = "%a %-d %b %H:%M") -> Markup:
    """Return an instant as a ``<time>`` element; a dash for None."""
    return escape(NOTHING) if at is None else _instant(at, zone, form)


@lru_cache(maxsize=4_096)
def _instant(at: int, zone: str, form: str) -> Markup:
    exact, words = "", "far away"
    with suppress(OverflowError, ValueError, OSError):
        moment = datetime.fromtimestamp(at, UTC)
        exact, words = moment.strftime("%Y-%m-%dT%H:%M:%SZ"), moment.astimezone(ZoneInfo(zone)).strftime(form)
    return Markup('<time datetime="{}">{}</time>').format(exact, words)


def duration(seconds: int | None) -> str:
    """Return seconds in their two largest units: ``2d 4h``, ``3h 05m``, ``12m``, ``40s``."""
    if seconds is None:
        return NOTHING
    sign, left = ("-", -seconds) if seconds < 0 else ("", seconds)
    if left >= 2 * DAY:
        return f"{sign}{left // DAY}d {left % DAY // 3_600}h"
    if left >= 3_600:
        return f"{sign}{left // 3_600}h {left % 3_600 // 60:02d}m"
    return f"{sign}{left // 60}m" if left >= 60 else f"{sign}{left}s"


def ago(seconds: int) -> str:
    """Return the time since or until an instant, in words."""
    if abs(seconds) < 5:
        return "now"
    return f"{duration(seconds)} ago" if seconds > 0 else f"in {duration(-seconds)}"


def share(part: float, whole: float) -> str:
    """Return a percentage, rounded down below 100 %."""
    if not whole:
        return NOTHING
    percent = 100 * part / whole
    return f"{min(percent, 99.9) if part < whole else percent:.1f}%"


def arrow(trend: float | None) -> Markup:
    """Return the trend of a loss as a sign, with words for screen readers."""
    if trend is None:
        return Markup()
    sign, word = ("→", "level") if abs(trend) < _LEVEL else ("↓", "falling") if trend < 0 else ("↑", "rising")
    return Markup('<span class="trend" title="{0}">{1}<span class="hidden"> {0}</span></span>').format(word, sign)


def spark(going: TrainingProgress) -> Markup:
    """Return a sparkline of a job's losses."""
    return Markup(  # noqa: S704 - generated here, its text escaped
        loss_curve_svg(going.job, going.losses, going.target_step, height=28, axes=False, whole=False)
    )


def plain(value: Any) -> Markup | str:
    """Return a value of unknown shape as text, such as the data of an event."""
    match value:
        case None:
            return NOTHING
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case dict():
            return Markup(", ").join(
                escape(f"{key} {plain(inner)}") for key, inner in value.items() if inner not in ("", None)
            )
        case list():
            return ", ".join(str(plain(inner)) for inner in value)
        case _:
            return str(value)


# Static files; the address of each contains its digest.
_FOLDER = Path(__file__).with_name("static")
_TYPES = {"style.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg+xml"}


@cache
def asset_content(name: str) -> bytes:
    """Return the content of an asset; the style sheet includes the style of the charts. Raises KeyError."""
    if name not in _TYPES:
        raise KeyError(name)
    text = (_FOLDER / name).read_bytes()
    return STYLE.encode() + text if name == "style.css" else text


@cache
def asset_address(name: str) -> str:
    """Return the address of an asset. Raises KeyError."""
    return f"/assets/{hashlib.sha256(asset_content(name)).hexdigest()[:12]}/{name}"


def asset_routes() -> APIRouter:
    """Return the route of all assets."""
    routes = APIRouter()

    @routes.get("/assets/{version}/{name}", include_in_schema=False)
    def asset(version: str, name: str) -> Any:
        if name not in _TYPES or asset_address(name) != f"/assets/{version}/{name}":
            raise HTTPException(404, "Not Found")
        kept = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(asset_content(name), media_type=_TYPES[name], headers=kept)

    return routes
