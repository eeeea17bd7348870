"""Quota: the use of every quota, how each quota burns down over its window, and the ledger behind them."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection

from scheduler.core.quota import Meter
from scheduler.report.burn_down import BurnDown, burn_down_svg
from scheduler.service.quota.usage import meters_of
from scheduler.store import ledger, limits, plans
from scheduler.views import chart_facts
from scheduler.web.paging import Paging
from scheduler.web.shapes import Ledger, Quotas
from scheduler.web.source import Source


def meters(source: Source, tx: Connection, now: int) -> list[Meter]:
    """Return all meters, by pool."""
    return meters_of(source.pools, source.charges(tx), limits.observed(tx), now)


def burn_downs(source: Source, tx: Connection, now: int) -> list[BurnDown]:
    """Return how each quota of each pool burns down, with what the newest plan will take of it."""
    return chart_facts.burn_downs(tx, source.pools, source.plan(tx), source.charges(tx), now)


def sparks(source: Source, tx: Connection, now: int) -> Mapping[tuple[str, str], str]:
    """Return of each pool and quota its burn-down as a line as small as a word, made anew once a minute."""
    return source.kept(
        "sparks",
        (ledger.newest_number(tx), plans.newest_number(tx), now // 60),
        lambda: {
            (chart.pool, chart.quota): burn_down_svg(chart, source.zone, height=28, axes=False)
            for chart in burn_downs(source, tx, now)
        },
    )


def quotas(source: Source) -> Quotas:
    """Return the meters and the burn-downs."""
    now = source.now
    with source.read() as tx:
        found = {"quotas": meters(source, tx, now), "burn_down": burn_downs(source, tx, now)}
    return Quotas.model_validate(found)


def entries(source: Source, paging: Paging, pool: str | None = None) -> Ledger:
    """Return a page of the ledger, newest facts first, of one pool if asked."""
    with source.read() as tx:
        found, total = ledger.page(tx, paging.rows, paging.offset, pool)
    return Ledger(entries=found, total=total, page=paging.number, pages=paging.pages(total))
