"""Quota: every meter, and how each quota burns down over its window."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from scheduler.service import pictures
from scheduler.service.meters import meters_of
from scheduler.store import limits
from scheduler.web.shapes import BurnDownRow, MeterRow, Quotas

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from scheduler.report.burn_down import BurnDown
    from scheduler.web.source import Source


def meter_rows(source: Source, tx: Connection, now: int) -> list[MeterRow]:
    """Return all meters, by pool."""
    return [
        MeterRow(**asdict(meter)) for meter in meters_of(source.pools, source.charges(tx), limits.observed(tx), now)
    ]


def burn_downs(source: Source, tx: Connection, now: int) -> list[BurnDown]:
    """Return how each quota of each pool burns down, with what the newest plan will take of it."""
    return pictures.burn_downs(tx, source.pools, source.plan(tx), source.charges(tx), now)


def quotas(source: Source) -> Quotas:
    """Return the meters and the burn-downs."""
    now = source.now
    with source.read() as tx:
        return Quotas(
            quotas=meter_rows(source, tx, now),
            burn_down=[_row(chart) for chart in burn_downs(source, tx, now)],
        )


def _row(chart: BurnDown) -> BurnDownRow:
    return BurnDownRow(
        pool=chart.pool,
        quota=chart.quota,
        unit=chart.unit,
        start=chart.start,
        end=chart.end,
        now=chart.now,
        limit=chart.limit,
        measured=list(chart.measured),
        ahead=list(chart.ahead),
    )
