"""Prices of one hour of a pool's sessions, as platforms report them. The latest report counts."""

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy import Connection

from jobs.nouns.pool import Pool
from scheduler.store import events

_KIND = "price.observed"


def record(tx: Connection, pool: Pool, microdollars: int, source: str, now: int) -> None:
    """Store the price of an hour unless it is unchanged; event ``price.observed``."""
    if of(tx, replace(pool, price_microdollars_per_hour=0)) != microdollars:
        events.append(tx, _KIND, pool.name, now, microdollars=microdollars, source=source, platform=pool.platform)


def of(tx: Connection, pool: Pool) -> int:
    """Return the price of an hour in microdollars: the declared one, else the reported one, else 0."""
    return priced(tx, {pool.name: pool})[pool.name].price_microdollars_per_hour


def priced(tx: Connection, pools: Mapping[str, Pool]) -> dict[str, Pool]:
    """Return the pools; those without a declared price get the reported one."""
    open_ones = [name for name, pool in pools.items() if not pool.price_microdollars_per_hour]
    result = dict(pools)
    for event in events.latest(tx, open_ones, _KIND):
        pool, price = result[event.subject], event.data
        # Ignore a price that was reported for another platform under this name.
        if price.get("platform") == pool.platform and isinstance(price.get("microdollars"), int):
            result[event.subject] = replace(pool, price_microdollars_per_hour=price["microdollars"])
    return result
