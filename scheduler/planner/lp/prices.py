"""Prices of a second of each pool class and of a step of each job.

They are the duals of the linear programme. Without a solver they come from filling the quotas with the densest work.
"""

from collections.abc import Sequence

from scheduler.planner.lp.grid import Grid
from scheduler.planner.lp.linear import Programme
from scheduler.planner.lp.solver import Solution
from scheduler.planner.model.case import Case
from scheduler.planner.model.lanes import CandidateSession
from scheduler.planner.model.policy import PHASES
from scheduler.planner.model.session_yield import TOLERANCE

# The cache of admission rules is cleared when it holds this many.
ADMITTED_MAX = 100
Phased = dict[tuple[int, int, int], float]


class Prices:
    """The prices of hours and of work.

    ``table`` is the undiscounted value per second of a whole session, by pool class and span; on pools with
    ``device_counts``, of a session with the most devices. ``work`` is the discounted value of a step by job.
    """

    def __init__(
        self, case: Case, grid: Grid, table: list[list[float]], work: list[float], targets: Phased | None = None
    ) -> None:
        self.table = table
        self.targets = targets or {}
        self.work = work
        self.span_at = grid.span_at
        self._edges = grid.edges
        self.worth = [case.discount.at(start) for start in grid.edges[:-1]]
        self.steps_worth = [step_worth(case, job) for job in range(len(case.jobs))]
        self.widest = [group.pool.devices_per_session if group.pool.device_counts else 0 for group in case.classes]
        self._admitted: dict[tuple[tuple[float, ...], float], PriceAdmission] = {}

    def per_second(self, group: int, instant: int) -> float:
        """Return the price of one second of a session of pool class ``group`` at ``instant``."""
        return self.table[group][self.span_at(instant)]

    def share(self, group: int, devices: int) -> float:
        """Return the part of a whole session's price for ``devices``; 1.0 on pools without ``device_counts``."""
        return devices / self.widest[group] if self.widest[group] else 1.0

    def cost(self, group: int, start: int, end: int) -> float:
        """Return the discounted price of a whole session of pool class ``group`` over [start, end)."""
        total, span = 0.0, self.span_at(start)
        while start < end:
            until = min(end, self._edges[span + 1]) if span + 2 < len(self._edges) else end
            total += (until - start) * self.table[group][span] * self.worth[span]
            start, span = until, span + 1
        return total

    def admits(self, factors: Sequence[float], patience: float) -> "PriceAdmission":
        """Return the rule that a session must be worth its price, scaled by one of ``factors`` per pool class.

        The value of the same steps elsewhere or later, times ``patience``, is subtracted from the session's value.
        """
        key = tuple(factors), patience
        if key not in self._admitted:
            if len(self._admitted) >= ADMITTED_MAX:
                self._admitted.clear()
            self._admitted[key] = PriceAdmission(self, factors, patience)
        return self._admitted[key]


class PriceAdmission:
    """An admission rule by price, for ``Policy.admits``."""

    def __init__(self, prices: Prices, factors: Sequence[float], patience: float) -> None:
        self._span_at, self._share, self._widest = prices.span_at, prices.share, prices.widest
        self._worth = prices.worth
        self._work = [patience * work for work in prices.work]
        self._steps_worth = prices.steps_worth
        self._scaled_prices = [
            [factor * price for price in row] for factor, row in zip(factors, prices.table, strict=True)
        ]
        self._density_factors: dict[int, list[float]] = {}  # by span, one per job
        self._instant, self._span = -1, 0

    def __call__(self, group: int, instant: int, session: CandidateSession) -> bool:
        """Return whether ``session`` is worth its price and the value of its steps elsewhere."""
        span = self._at(instant)
        length, lanes, rate = session
        if len(lanes) == 1:
            ((job, _, steps),) = lanes
            forgone = self._work[job] * steps / self._worth[span]
        else:
            forgone = sum(self._work[job] * steps for job, _, steps in lanes) / self._worth[span]
        price = self._scaled_prices[group][span]
        if self._widest[group]:
            price *= self._share(group, session.devices)
        return rate - forgone / length >= price

    def least(self, group: int, instant: int) -> tuple[Sequence[float], float]:
        """Return (factor of the density by job, minimum): no session is admitted if density x factor is below it."""
        span = self._at(instant)
        factors = self._density_factors.get(span)
        if factors is None:
            discount = self._worth[span]
            factors = self._density_factors[span] = [
                1.0 - work / discount / worth if worth > 0 else 1.0
                for work, worth in zip(self._work, self._steps_worth, strict=True)
            ]
        return factors, self._scaled_prices[group][span] * (1.0 - TOLERANCE)

    def _at(self, instant: int) -> int:
        """Return the span of ``instant``; the last answer is cached."""
        if instant != self._instant:
            self._instant, self._span = instant, self._span_at(instant)
        return self._span


def dual_prices(
    case: Case, grid: Grid, jobs: Sequence[int], solution: Solution, targets: Phased | None = None
) -> Prices:
    """Return the prices from the duals of a solved programme over ``jobs``, with its ``targets``."""
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
    """Return rough prices without a solver: the density of the last work that fits when the densest goes first.

    There is one price per pool class for the whole horizon, zero if hours are left over.
    """
    free = [0.0] * len(case.classes)
    for group, markets in enumerate(_markets_of(case, grid)):
        free[group] = sum(market_seconds(grid, market) for market in markets)
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
        needed = min(steps[job] / rate, seconds[job])
        if needed < 1:
            continue
        if free[group] <= 0:
            table[group] = max(table[group], -density)
            continue
        used = min(needed, free[group] / lanes)
        free[group] -= used * lanes
        seconds[job] -= int(used)
        steps[job] -= round(used * rate)
        if free[group] <= 1:
            free[group], table[group] = 0.0, -density
    spans = len(grid.edges) - 1
    return Prices(case, grid, [[price] * spans for price in table], [0.0] * len(case.jobs))


def step_worth(case: Case, job: int) -> float:
    """Return the value of one step of ``job``, equal on every pool; zero for a job that no pool can run."""
    return next((offer.worth for group in case.classes if (offer := group.offers[job]) is not None), 0.0)


def _markets_of(case: Case, grid: Grid) -> list[list[int]]:
    return [
        [number for number, market in enumerate(grid.markets) if market.group == group]
        for group in range(len(case.classes))
    ]


def market_seconds(grid: Grid, market: int) -> float:
    """Return the lane-seconds that ``market`` offers within the horizon, limited by capacity and every quota."""
    capacity = sum(
        min(limit.lane_seconds for limit in grid.limits if limit.market == market and limit.first <= span < limit.last)
        for span in range(len(grid.edges) - 1)
    )
    windows = [limit for limit in grid.limits if limit.market == market and limit.last > limit.first + 1]
    for window in windows:
        covered = sum(
            min(each.lane_seconds for each in grid.limits if each.market == market and each.first <= span < each.last)
            for span in range(window.first, window.last)
        )
        capacity -= max(0.0, min(capacity, covered - window.lane_seconds))
    return capacity


# Targets: the pool class and time at which the linear programme runs each job, as factors for the dispatcher.
#
# Prices decide which sessions are worth their hours; targets decide which of several such jobs starts. Without targets
# the densest job goes first, and may use the only pool on which another job is fast.
# A targeted job precedes every other job of less than this many times its density.
BOOST = 16.0


def targets(case: Case, grid: Grid, programme: Programme, solution: Solution) -> Phased:
    """Return the factors of the jobs that the programme runs, by (pool class, job, phase of the horizon).

    The seconds of a span count in every phase that it overlaps. A phase with less than the shortest useful session has
    no target.
    """
    import numpy as np

    seconds: dict[tuple[int, int, int], float] = {}
    used = np.nonzero(solution.seconds > 1.0)[0]
    columns = zip(
        programme.job[used].tolist(),
        programme.market[used].tolist(),
        programme.span[used].tolist(),
        solution.seconds[used].tolist(),
        strict=True,
    )
    length = case.snapshot.horizon_seconds / PHASES
    for job, market, span, share in columns:
        first = int((grid.edges[span] - case.now) / length)
        last = int((min(grid.edges[span + 1], case.until) - 1 - case.now) / length)
        for phase in range(first, last + 1):
            key = (grid.markets[market].group, job, phase)
            seconds[key] = seconds.get(key, 0.0) + share
    boosted: Phased = {}
    for (group, job, phase), total in seconds.items():
        offer = case.classes[group].offers[job]
        if offer is not None and total >= offer.shortest(case.jobs[job].view.remaining_steps):
            boosted[group, job, phase] = BOOST
    return boosted
