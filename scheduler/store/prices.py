"""Prices: what an hour of a pool's sessions costs, as its platform reported last. The latest report counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy import Connection, bindparam, func, select

from scheduler.core.pool import Pool
from scheduler.store import codec, events
from scheduler.store.schema import events as events_table

_KIND = "price.observed"
_LAST = select(func.max(events_table.c.id)).where(
    events_table.c.subject.in_(bindparam("pools", expanding=True)), events_table.c.kind == _KIND
)
_REPORTED = select(events_table.c.subject, events_table.c.data).where(
    events_table.c.id.in_(_LAST.group_by(events_table.c.subject))
)


def note(tx: Connection, pool: Pool, microdollars: int, source: str, now: int) -> None:
    """Write down what an hour costs, unless that is what was told last: event ``price.observed``."""
    if of(tx, replace(pool, price_microdollars_per_hour=0)) != microdollars:
        events.append(tx, _KIND, pool.name, now, microdollars=microdollars, source=source, platform=pool.platform)


def of(tx: Connection, pool: Pool) -> int:
    """Return the price of an hour in microdollars: as declared, else as told, else 0."""
    return priced(tx, {pool.name: pool})[pool.name].price_microdollars_per_hour


def priced(tx: Connection, pools: Mapping[str, Pool]) -> dict[str, Pool]:
    """Return the pools, those without a declared price with what their platforms told."""
    open_ones = sorted(name for name, pool in pools.items() if not pool.price_microdollars_per_hour)
    result = dict(pools)
    for row in tx.execute(_REPORTED, {"pools": open_ones}) if open_ones else ():
        price = codec.load_object(row.data)
        # What another platform of that name cost once is no price of this one.
        if price.get("platform") == result[row.subject].platform and isinstance(price.get("microdollars"), int):
            result[row.subject] = replace(result[row.subject], price_microdollars_per_hour=price["microdollars"])
    return result
