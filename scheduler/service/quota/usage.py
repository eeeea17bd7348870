"""Usage: every quota of every pool, with its used, held and free amounts."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from jobs.nouns.pool import Pool
from scheduler.core.ledger import Charge
from scheduler.core.quota import Meter, ObservedLimit, current_quotas, meter
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
    """Return what :func:`meters` returns, from loaded rows; ``charges`` must cover all windows."""
    return [
        meter(name, quota, charges.get(name, ()), now, observed.get(name, ()))
        for name, pool in sorted(pools.items())
        for quota in current_quotas(pool, observed.get(name, ()))
    ]
