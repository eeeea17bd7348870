"""Data of the charts of pages and reports, read from the database."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from sqlalchemy import Connection

from jobs.nouns.pool import Pool
from jobs.nouns.window import Window
from scheduler.core.ledger import Charge, fold
from scheduler.core.plan import Plan
from scheduler.report.burn_down import BurnDown, burn_down_of, burn_down_svg
from scheduler.report.chart import hues_of
from scheduler.report.loss_curve import loss_curve_svg
from scheduler.report.picture import Picture
from scheduler.report.report import Report
from scheduler.report.timeline import Timeline, timeline_of, timeline_svg, upcoming
from scheduler.store import events, jobs, ledger, limits, plans, prices, queue_waits, runs
from scheduler.store.engine import Database

_CLOSURES_SHOWN = 50
_WIDTH, _SMALL = 1_000, 640
_CURVES_MAX, _QUOTAS_MAX = 12, 12
_AHEAD_SECONDS = 7 * 86_400


def timeline(tx: Connection, pools: Mapping[str, Pool], plan: Plan | None, span: Window, now: int) -> Timeline:
    """Return the data of the timeline: the sessions of all pools in ``span``."""
    return timeline_of(
        span,
        now,
        [pool for _, pool in sorted(pools.items())],
        queue_waits.attach(tx, runs.between(tx, span.start, span.end)),
        plan,
        {name: closures(tx, name, now, span.end) for name in pools},
        hues_of(jobs.names_by_age(tx)),
    )


def closures(tx: Connection, pool: str, now: int, until: int) -> list[Window]:
    """Return the closures of a pool known from the newest events; closures without an end extend to ``until``."""
    result: list[Window] = []
    since: int | None = None
    planned_end: int | None = None
    for event in events.tail(tx, limit=_CLOSURES_SHOWN, kinds=("pool.closed", "pool.opened"), subject=pool):
        if since is not None:
            end = event.at if planned_end is None else min(event.at, planned_end)
            result += [Window(since, end)] if end > since else []
        since, planned_end = (event.at, event.data.get("until")) if event.kind == "pool.closed" else (None, None)
    if since is not None:
        closed_until = limits.closures(tx).get(pool, (planned_end, ""))[0]
        end = max(until, now + 1) if closed_until is None else closed_until
        result += [Window(since, end)] if end > since else []
    return result


def burn_downs(
    tx: Connection, pools: Mapping[str, Pool], plan: Plan | None, charges: Mapping[str, Sequence[Charge]], now: int
) -> list[BurnDown]:
    """Return one chart for each quota of each pool: its use up to now by ``charges``, then as ``plan`` expects."""
    observed = limits.observed(tx)
    live = runs.live(tx)
    result = []
    for name, pool in sorted(prices.priced(tx, pools).items()):
        ours = [run for run in live if run.pool == name]
        price = pool.price_microdollars_per_hour
        planned = [
            Charge(max(place.start, now), place.end, price_microdollars_per_hour=price, devices=place.devices)
            for place in upcoming(plan, ours, name, now)
        ]
        used, limits_read = charges.get(name, ()), observed.get(name, ())
        result += [burn_down_of(name, quota, used, limits_read, planned, now) for quota in pool.quotas]
    return result


def pictures_of(database: Database, pools: Mapping[str, Pool], report: Report) -> list[Picture]:
    """Return the charts of a report: its week, the next seven days, the quotas, and the losses of its jobs."""
    now, zone = report.made_at, report.zone
    with database.read() as tx:
        plan = plans.newest(tx)
        past = timeline(tx, pools, None, Window(report.start, report.end), now)
        coming = timeline(tx, pools, plan, Window(now, now + _AHEAD_SECONDS), now)
        end = report.end  # the charts show the quotas at the end of the week, even if the report is made later
        booked = [entry for entry in ledger.entries(tx, since=end - ledger.LOOK_BACK_SECONDS) if entry.at < end]
        ahead, at = (plan, end) if report.so_far else (None, end - 1)
        quotas = burn_downs(tx, pools, ahead, fold(booked), at)

    curves = sorted((job for job in report.jobs if len(job.losses) > 1), key=lambda job: -len(job.losses))
    return [
        _picture("week", f"Sessions of {report.label}", partial(timeline_svg, past, zone), _WIDTH),
        _picture("ahead", "The next seven days by the plan", partial(timeline_svg, coming, zone), _WIDTH),
        *(
            _picture(
                f"quota-{number}",
                f"{chart.pool}, {chart.quota}: what is left over time",
                partial(burn_down_svg, chart, zone),
                _SMALL,
            )
            for number, chart in enumerate(quotas[:_QUOTAS_MAX])
        ),
        *(
            _picture(
                f"loss-{number}",
                f"{job.name}: held-out loss over steps",
                partial(loss_curve_svg, job.name, job.losses, job.target_step, whole=False),
                _SMALL,
            )
            for number, job in enumerate(sorted(curves[:_CURVES_MAX], key=lambda job: job.name))
        ),
    ]


def _picture(name: str, caption: str, draw: Callable[[int | None], str], width: int) -> Picture:
    return Picture(name, caption, draw(None), draw(width), width)
