"""Prices: what a second of each pool class and a step of each job are worth.

They are the duals of the linear programme or, without a solver, come from filling the quotas densest work first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scheduler.planner.case import Case
    from scheduler.planner.grid import Grid
    from scheduler.planner.lanes import Session
    from scheduler.planner.solver import Solution
    from scheduler.planner.targets import Phased


class Prices:
    """What hours cost and what work could bring elsewhere.

    ``table`` is the undiscounted value per second of a whole session by pool class and span, ``work`` the discounted
    value of a step by job.
    """

    def __init__(
        self, case: Case, grid: Grid, table: list[list[float]], work: list[float], targets: Phased | None = None
    ) -> None:
        self.table = table
        self.targets = targets or {}
        self.work = work
        self._span_at = grid.span_at
        self._worth = [case.discount.at(start) for start in grid.edges[:-1]]

    def per_second(self, group: int, instant: int) -> float:
        """Return the price of one second of a session of pool class ``group`` at ``instant``."""
        return self.table[group][self._span_at(instant)]

    def admits(self, factors: Sequence[float], patience: float) -> Callable[[int, int, Session], bool]:
        """Return the dispatcher's rule: a session must bring its price, scaled by one factor per pool class.

        What a job could make of the same steps elsewhere or later is taken off what it brings, times ``patience``.
        """

        def admitted(group: int, instant: int, session: Session) -> bool:
            span = self._span_at(instant)
            elsewhere = sum(self.work[lane.job] * lane.steps for lane in session.lanes) / self._worth[span]
            return session.rate - patience * elsewhere / session.length >= factors[group] * self.table[group][span]

        return admitted


def dual_prices(
    case: Case, grid: Grid, jobs: Sequence[int], solution: Solution, targets: Phased | None = None
) -> Prices:
    """Return the prices of a solved programme over ``jobs``, and where it would have them work."""
    spans = range(len(grid.edges) - 1)
    lane_second = [[0.0] * len(spans) for _ in grid.markets]
    for limit, price in zip(grid.limits, solution.prices.tolist(), strict=False):
        for span in range(limit.first, limit.last):
            lane_second[limit.market][span] += price
    worth = [case.discount.at(start) for start in grid.edges[:-1]]
    table = [
        [
            min((lane_second[m][span] * grid.markets[m].devices for m in markets), default=0.0) / worth[span]
            for span in spans
        ]
        for markets in _markets_of(case, grid)
    ]
    work = [0.0] * len(case.jobs)
    for job, price in zip(jobs, solution.prices[len(grid.limits) :].tolist(), strict=False):
        work[job] = price
    return Prices(case, grid, table, work, targets)


def scarcity_prices(case: Case, grid: Grid) -> Prices:
    """Return, without a solver, the density of the last work that still fits when the densest goes first.

    Time within the horizon is ignored but for its length: a price per pool class, zero where hours are left over.
    """
    free = [0.0] * len(case.classes)
    for group, markets in enumerate(_markets_of(case, grid)):
        free[group] = sum(_offered(grid, market) for market in markets)
    steps = [max(0, job.view.remaining_steps - job.expected_steps) if job.startable else 0 for job in case.jobs]
    seconds = [max(0, case.until - max(case.now, job.release)) for job in case.jobs]
    pairs = sorted(
        (-offer.worth * rate * group.pool.devices_per_session / lanes, job, number, rate, lanes)
        for number, group in enumerate(case.classes)
        for job, offer in enumerate(group.offers)
        if offer is not None and steps[job] > 0
        for rate, lanes in [offer.best_rate(steps[job])]
    )
    table = [0.0] * len(case.classes)
    for density, job, group, rate, lanes in pairs:
        wanted = min(steps[job] / rate, seconds[job])
        if wanted < 1:
            continue
        if free[group] <= 0:
            table[group] = max(table[group], -density)
            continue
        taken = min(wanted, free[group] / lanes)
        free[group] -= taken * lanes
        seconds[job] -= int(taken)
        steps[job] -= round(taken * rate)
        if free[group] <= 1:
            free[group], table[group] = 0.0, -density
    spans = len(grid.edges) - 1
    return Prices(case, grid, [[price] * spans for price in table], [0.0] * len(case.jobs))


def _markets_of(case: Case, grid: Grid) -> list[list[int]]:
    return [
        [number for number, market in enumerate(grid.markets) if market.group == group]
        for group in range(len(case.classes))
    ]


def _offered(grid: Grid, market: int) -> float:
    """Return the lane-seconds of the horizon: the least of what capacity and every quota's windows add up to."""
    capacity = sum(
        min(limit.lane_seconds for limit in grid.limits if limit.market == market and limit.first <= span < limit.last)
        for span in range(len(grid.edges) - 1)
    )
    windows = [limit for limit in grid.limits if limit.market == market and limit.last > limit.first + 1]
    for window in windows:
        covered = sum(
            min(o.lane_seconds for o in grid.limits if o.market == market and o.first <= span < o.last)
            for span in range(window.first, window.last)
        )
        capacity -= max(0.0, min(capacity, covered - window.lane_seconds))
    return capacity
