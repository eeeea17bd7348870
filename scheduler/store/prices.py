"""Prices: what an hour of a pool's sessions costs, as its platform reported last. The latest report counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy import Connection

from jobs.nouns.pool import Pool
from scheduler.store import events

_KIND = "price.observed"


def note(tx: Connection, pool: Pool, microdollars: int, source: str, now: int) -> None:
    """Write down what an hour costs, unless that is what was told last: event ``price.observed``."""
    if of(tx, replace(pool, price_microdollars_per_hour=0)) != microdollars:
        events.append(tx, _KIND, pool.name, now, microdollars=microdollars, source=source, platform=pool.platform)


def of(tx: Connection, pool: Pool) -> int:
    """Return the price of an hour in microdollars: as declared, else as told, else 0."""
    return priced(tx, {pool.name: pool})[pool.name].price_microdollars_per_hour


def priced(tx: Connection, pools: Mapping[str, Pool]) -> dict[str, Pool]:
    """Return the pools, those without a declared price with what their platforms told."""
    open_ones = [name for name, pool in pools.items() if not pool.price_microdollars_per_hour]
    result = dict(pools)
    for event in events.latest(tx, open_ones, _KIND):
        pool, price = result[event.subject], event.data
        # What another platform of that name cost once is no price of this one.
        if price.get("platform") == pool.platform and isinstance(price.get("microdollars"), int):
            result[event.subject] = replace(pool, price_microdollars_per_hour=price["microdollars"])
    return result
