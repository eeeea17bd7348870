"""Grid: the horizon in time spans, the pools in markets, and the lane-seconds that each market offers per span."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from jobs.nouns.quota import CalendarQuota, FirstUseQuota, MoneyQuota, Quota, RollingQuota, charges_by_device
from jobs.nouns.window import DAY
from scheduler.core.quota import limit_at
from scheduler.planner.model.case import Case

# With this many jobs spans are shorter than a day, so that gates, releases and deadlines bind within a day as well.
# With fewer the bound does not improve (measured on the benchmark's weeks); with more, solving takes too long.
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
    """``edges`` of the spans (each UTC day or quarter day, and each calendar window); markets and their limits."""

    edges: list[int]
    markets: list[Market]
    limits: list[Limit]

    def span_at(self, instant: int) -> int:
        """Return the index of the span that contains ``instant``."""
        return min(len(self.edges) - 2, max(0, bisect_right(self.edges, instant) - 1))


def make_grid(case: Case, *, fine: bool = True) -> Grid:
    """Return the grid of ``case``; without ``fine`` no span is shorter than a day, except at calendar windows."""
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
    """Return the limit of every span: places times open seconds, less the seconds that live runs use."""
    devices = 1 if case.classes[market.group].pool.device_counts else market.devices  # per place
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
            # A live run may outlast the opening hours; only its open seconds count.
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
    # If a session is charged without regard to its devices, the bound assumes that it uses all of them.
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
            # A stretch of n quota spans allows at most n times the limit. A first-use quota allows once more, because a
            # span may be open already.
            extra = 1 if isinstance(quota, FirstUseQuota) else 0
            limits = []
            for first in range(spans if extra == 0 else 1):
                for last in range(first + 1, spans + 1):
                    quota_spans = -(-(edges[last] - edges[first]) // length) + extra
                    if extra == 0 and last > first + 1 and quota_spans > 1:
                        break
                    seconds = 0
                    for pool in market.pools:
                        view = case.capacities[pool].view
                        own = view.pool.quotas[index]
                        seconds += quota_spans * max(limit_at(own, edge, view.observed) for edge in edges[first:last])
                    limits.append(Limit(number, first, last, float(seconds * devices)))
            return limits
