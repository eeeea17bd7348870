"""Price age: prices are data with a date, and a budget in money is only as good as its price."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from scheduler.core.quota import MoneyQuota
from scheduler.service.doctor import Finding

if TYPE_CHECKING:
    from scheduler.core.pool import Pool

_DAYS_MAX = 180


def check_price(pool: Pool, now: float) -> Finding:
    """Judge how old a pool's price is; ``now`` is real UTC seconds. What costs money should have a budget in money."""
    price = f"${pool.price_microdollars_per_hour / 1_000_000:.4f} an hour"
    bounded = any(isinstance(quota, MoneyQuota) for quota in pool.quotas)
    remedy = "Look it up in the platform's price list and write price_per_hour and as_of"
    if not pool.price_microdollars_per_hour:
        return Finding("ok", "hours cost nothing here")
    if not pool.as_of:
        return Finding("warning", f"{price}, of no date", remedy)
    days = (datetime.fromtimestamp(now, UTC).date() - date.fromisoformat(pool.as_of)).days
    found = f"{price}, as of {pool.as_of}{'' if bounded else '; no budget in money bounds it'}"
    if days > _DAYS_MAX:
        return Finding("warning", f"{found}, which is {days} days ago", remedy)
    if not bounded:
        return Finding("warning", found, "Add a quota of kind money-day, money-week or money-month")
    return Finding("ok", found)
