"""Usage: every quota of every pool, with its used, held and free amounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection

from jobs.nouns.pool import Pool
from jobs.nouns.quota import FirstUseQuota, MoneyQuota, Quota, RollingQuota
from jobs.nouns.window import EVER
from scheduler.core.ledger import Charge, cost_within, seconds_within
from scheduler.core.quota import Meter, ObservedLimit, current_quotas, usage
from scheduler.store import ledger, limits


def meters(tx: Connection, pools: Mapping[str, Pool], now: int) -> list[Meter]:
    """Return the meters of all pools, by pool name, quotas in the order of the settings."""
    return meters_of(pools, ledger.charges(tx, now - ledger.LOOK_BACK_SECONDS), limits.observed(tx), now)


def meters_of(
    pools: Mapping[str, Pool],
    charges: Mapping[str, Sequence[Charge]],
    observed: Mapping[str, Sequence[ObservedLimit]],
    now: int,
) -> list[Meter]:
    """As :func:`meters`, from loaded rows; ``charges`` must cover all windows."""
    return [
        _meter(name, quota, charges.get(name, ()), now, observed.get(name, ()))
        for name, pool in sorted(pools.items())
        for quota in current_quotas(pool, observed.get(name, ()))
    ]


def _meter(pool: str, quota: Quota, charges: Sequence[Charge], now: int, observed: Sequence[ObservedLimit]) -> Meter:
    used = usage(quota, charges, now, observed)
    source, as_of = quota.source, quota.as_of
    covering = [one for one in observed if one.quota == quota.name and one.start <= now < one.end]
    if newest := max(covering, key=lambda one: one.at, default=None):
        source, as_of = newest.source, datetime.fromtimestamp(newest.at, UTC).date().isoformat()
    waits = [charge for charge in charges if charge.waited]
    return Meter(
        pool=pool,
        quota=quota.name,
        unit="microdollars" if isinstance(quota, MoneyQuota) else "seconds",
        limit=used.limit,
        used=used.used - used.held,
        held=used.held,
        free=used.free,
        start=used.window.start,
        end=used.window.end,
        resets_at=_resets_at(quota, charges, used.window.end, now),
        source=source,
        as_of=as_of,
        waited=(cost_within if isinstance(quota, MoneyQuota) else seconds_within)(waits, used.window),
    )


def _resets_at(quota: Quota, charges: Sequence[Charge], end: int, now: int) -> int | None:
    match quota:
        case RollingQuota(span_seconds=span):
            leaving = [max(now, charge.start + span) for charge in charges if charge.end + span > now]
            return min(leaving, default=None)
        case FirstUseQuota():
            # A first-use span without any use starts now.
            opened = any(charge.start < end and charge.end > end - quota.span_seconds for charge in charges)
            return end if opened else None
        case _:
            return None if end == EVER.end else end
