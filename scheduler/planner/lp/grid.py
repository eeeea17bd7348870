"""Grid: time cut into spans, pools summed into markets, and what each market can give in which spans."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from scheduler.core.quota import (
    CalendarQuota,
    FirstUseQuota,
    MoneyQuota,
    Quota,
    RollingQuota,
    charges_by_device,
    limit_at,
)
from scheduler.core.window import DAY
from scheduler.planner.model.case import Case

# Of so many jobs spans are shorter than a day, so that gates, releases and deadlines bind within a day as well. The
# bound of fewer gains nothing by it (the seeds' weeks), and to solve it takes longer; that of more takes too long.
FINE_JOBS = range(21, 301)
FINE_SECONDS = DAY // 4


@dataclass(frozen=True, slots=True)
class Market:
    """Pools of one class whose quotas have the same shape; their seconds are summed."""

    group: int  # index of the pool class in the case
    pools: tuple[int, ...]
    devices: int


@dataclass(frozen=True, slots=True)
class Limit:
    """At most ``lane_seconds`` of a market in the spans first <= span < last."""

    market: int
    first: int
    last: int
    lane_seconds: float


@dataclass(slots=True)
class Grid:
    """Time cut at every UTC day or quarter of one, and every edge of a calendar quota; markets and their limits."""

    edges: list[int]
    markets: list[Market]
    limits: list[Limit]

    def span_at(self, instant: int) -> int:
        """Return the index of the span that holds ``instant``."""
        return min(len(self.edges) - 2, max(0, bisect_right(self.edges, instant) - 1))


def make_grid(case: Case, *, fine: bool = True) -> Grid:
    """Cut the horizon of ``case`` and sum up what each market offers; unless ``fine`` into days at most."""
    shapes: dict[tuple[Any, ...], list[int]] = {}
    for number, capacity in enumerate(case.capacities):
        shape = tuple(_shape(quota) for quota in capacity.pool.quotas)
        shapes.setdefault((case.class_of[number], capacity.pool.price_microdollars_per_hour, shape), []).append(number)
    markets = [
        Market(key[0], tuple(members), case.classes[key[0]].pool.devices_per_session) for key, members in shapes.items()
    ]
    span = FINE_SECONDS if fine and len(case.jobs) in FINE_JOBS else DAY
    cuts = {case.now, case.until, *range((case.now // span + 1) * span, case.until, span)}
    for market in markets:
        for quota in case.capacities[market.pools[0]].pool.quotas:
            if isinstance(quota, CalendarQuota | MoneyQuota):
                cuts.update(w.start for w in quota.calendar.windows(case.now, case.until) if w.start > case.now)
    edges = sorted(cuts)
    limits: list[Limit] = []
    for number, market in enumerate(markets):
        limits += _capacity(case, market, number, edges)
        for index in range(len(case.capacities[market.pools[0]].pool.quotas)):
            limits += _quota_limits(case, market, number, index, edges)
    return Grid(edges, markets, limits)


def _shape(quota: Quota) -> tuple[Any, ...]:
    match quota:
        case CalendarQuota(calendar=calendar) | MoneyQuota(calendar=calendar):
            return type(quota).__name__, calendar, charges_by_device(quota)
        case RollingQuota(span_seconds=span) | FirstUseQuota(span_seconds=span):
            return type(quota).__name__, span, charges_by_device(quota)


def _capacity(case: Case, market: Market, number: int, edges: Sequence[int]) -> list[Limit]:
    """Places times open seconds of every span, live runs taken off."""
    devices = 1 if case.classes[market.group].pool.device_counts else market.devices  # of a place
    seconds = [0] * (len(edges) - 1)
    for index in market.pools:
        view = case.capacities[index].view
        pool = view.pool
        openings = pool.open_windows(edges[0], edges[-1])
        begins, closes = [opening.start for opening in openings], [opening.end for opening in openings]
        for span, (start, end) in enumerate(pairwise(edges)):
            opens = max(start, min(end, view.closed_until or start))
            if opens >= end:
                continue
            near = openings[bisect_right(closes, opens) : bisect_left(begins, end)]
            open_seconds = sum([opening.overlap(opens, end) for opening in near])
            # A live run may outlast the opening hours: what it holds while the pool is shut is no open second.
            live = sum(
                pool.places_of(run.devices) * opening.overlap(opens, min(run.held_until, end))
                for run in view.live
                if run.held_until > opens
                for opening in near
            )
            seconds[span] += max(0, pool.places * open_seconds - live)
    return [Limit(number, span, span + 1, float(total * devices)) for span, total in enumerate(seconds)]


def _quota_limits(case: Case, market: Market, number: int, index: int, edges: Sequence[int]) -> list[Limit]:
    quota = case.capacities[market.pools[0]].pool.quotas[index]
    spans = len(edges) - 1
    # Where sessions differ and are charged alike, each may be one with the most devices: no plan has more.
    devices = 1 if charges_by_device(quota) else market.devices
    match quota:
        case CalendarQuota() | MoneyQuota():
            sums: dict[tuple[int, int], int] = {}
            for window in quota.calendar.windows(case.now, case.until):
                first = bisect_right(edges, max(window.start, case.now)) - 1
                last = max(first + 1, bisect_right(edges, min(window.end, case.until)) - 1)
                free = sum(
                    count.free_in(window.start)
                    for pool in market.pools
                    for count in case.capacities[pool].counts
                    if count.name == case.capacities[pool].pool.quotas[index].name
                )
                sums[first, last] = sums.get((first, last), 0) + free  # short windows of a long span add up
            return [Limit(number, *span, float(free * devices)) for span, free in sums.items()]
        case RollingQuota(span_seconds=length) | FirstUseQuota(span_seconds=length):
            # Any stretch of up to n spans of the quota's length holds at most n times the limit (one more if the
            # span opens with its first use, for one may be open already).
            extra = 1 if isinstance(quota, FirstUseQuota) else 0
            limits = []
            for first in range(spans if extra == 0 else 1):
                for last in range(first + 1, spans + 1):
                    turns = -(-(edges[last] - edges[first]) // length) + extra
                    if extra == 0 and last > first + 1 and turns > 1:
                        break
                    seconds = 0
                    for pool in market.pools:
                        view = case.capacities[pool].view
                        own = view.pool.quotas[index]
                        seconds += turns * max(limit_at(own, edge, view.observed) for edge in edges[first:last])
                    limits.append(Limit(number, first, last, float(seconds * devices)))
            return limits
