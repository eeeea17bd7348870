"""Plans in parts, for thousands of jobs and pools: pools are split into groups, each with a core of jobs.

The densest jobs of one group give first prices of hours. Most jobs cannot pay them; the cores are the jobs that can,
with the parents that gate them. The mean prices of all groups give an upper bound for the whole plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

from jobs.grouping import grouped
from jobs.nouns.quota import CalendarQuota
from scheduler.core.plan import Deferral
from scheduler.core.reasons import GateClosed, NoAllowedPool, NotReleased, Outbid, Reason
from scheduler.core.snapshot import JobView, PoolView, Snapshot
from scheduler.planner.lp.grid import Grid
from scheduler.planner.lp.job_matrix import JobMatrix, kind_of
from scheduler.planner.model.value import Discount

if TYPE_CHECKING:
    from scheduler.planner.lp.job_matrix import Bools, Floats

# The work of the cores covers the offered hours at least this many times: without prices, and with prices.
COVER, COVER_PRICED = 3.6, 1.0
# A job is in the core if its value is at least this part of its cost: prices differ between groups.
PAYS = 0.8
PRICE_STEPS = (1.2, 1.2, 1.1, 1.05, 1.02)
POOLS_PER_GROUP = 20


@dataclass(frozen=True, slots=True)
class Parts:
    """The groups, each a snapshot with only the jobs of its core; the figures of all jobs; the kinds of pools."""

    snapshots: tuple[Snapshot, ...]
    matrix: JobMatrix
    kinds: dict[tuple[object, ...], int]


@dataclass(frozen=True, slots=True)
class PartPrices:
    """One group's linear programme: the kind of pool of each of its markets, and the prices of its limits."""

    grid: Grid
    kinds: Sequence[int]
    prices: Floats


@dataclass(frozen=True, slots=True)
class _KindPrices:
    """The price of a lane-second by kind and span, the discount by span, the price of all offered seconds by kind."""

    table: Floats
    discount: Sequence[float]
    paid: Floats


def split_snapshot(snapshot: Snapshot) -> Parts:
    """Return groups of pools of equal size, with the densest jobs as their cores."""
    views = sorted(snapshot.pools, key=lambda view: view.pool.name)
    by_kind = grouped((kind_of(view.pool), view) for view in views)
    matrix = JobMatrix(snapshot, [equal[0].pool for equal in by_kind.values()])
    smallest = min((len(equal) for equal in by_kind.values()), default=0)
    count = max(1, min(smallest, len(views) // POOLS_PER_GROUP))
    groups: list[list[PoolView]] = [[] for _ in range(count)]
    for equal in by_kind.values():
        for number, view in enumerate(equal):
            groups[number % count].append(view)
    kinds = {kind: number for number, kind in enumerate(by_kind)}
    return Parts(_assign_cores(snapshot, matrix, groups, matrix.density, COVER), matrix, kinds)


def split_by_prices(snapshot: Snapshot, parts: Parts, solved: PartPrices) -> Parts:
    """Return the parts with new cores: the jobs that can nearly pay the prices of one group."""
    prices = _kind_prices(snapshot, parts, [solved])
    returns = parts.matrix.returns(solved.grid.edges, prices.discount, prices.table)
    groups = [part.pools for part in parts.snapshots]
    return replace(parts, snapshots=_assign_cores(snapshot, parts.matrix, groups, returns, COVER_PRICED, PAYS))


def deferrals_outside(snapshot: Snapshot, parts: Parts) -> list[Deferral]:
    """Return the reason for each waiting job outside all cores."""
    planned = {job.name for part in parts.snapshots for job in part.jobs}
    parents = {job.gate.parent for job in snapshot.jobs if job.gate is not None}
    progress = {job.name: job.done_step / max(1, job.target_step) for job in snapshot.jobs if job.name in parents}
    progress.update(snapshot.finished)
    views = sorted(snapshot.pools, key=lambda view: view.pool.name)
    firsts = {kind_of(view.pool): view.pool.name for view in reversed(views)}
    # A job that may use a pool may usually use the first of its kind, so the first of each kind are tried first.
    names = sorted((view.pool.name for view in views), key=lambda name: (name not in firsts.values(), name))
    until, by = snapshot.now + snapshot.horizon_seconds, "denser work that fills the hours several times over"
    outbid = {name: Outbid(name, by, None, None, unplanned_until=until) for name in names}
    return [
        Deferral(job.name, _reason(job, snapshot, progress, outbid))
        for job in sorted(snapshot.jobs, key=lambda view: (view.position, view.name))
        if job.name not in planned and job.running is None and job.remaining_steps > 0
    ]


def _reason(job: JobView, snapshot: Snapshot, progress: Mapping[str, float], outbid: Mapping[str, Outbid]) -> Reason:
    if job.blocked is not None:
        return job.blocked
    release = max(job.not_before or 0, job.retry_at or 0)
    until = snapshot.now + snapshot.horizon_seconds
    if job.gate is not None and (reached := progress.get(job.gate.parent, 0.0)) < job.gate.fraction:
        shut = job.gate.parent not in progress or job.gate.parent in snapshot.finished
        if shut or release <= snapshot.now:
            return GateClosed(job.gate.parent, reached, job.gate.fraction, unplanned_until=None if shut else until)
    if release > snapshot.now:
        return NotReleased(release, job.why_not_before(release), unplanned_until=until)
    return next((reason for name, reason in outbid.items() if name in job.rates), NoAllowedPool(job.allowed_pools))


def _assign_cores(
    snapshot: Snapshot,
    matrix: JobMatrix,
    groups: Sequence[Sequence[PoolView]],
    returns: Floats,
    cover: float,
    pays: float = float("inf"),
) -> tuple[Snapshot, ...]:
    """Return each group with its core: jobs with ``returns`` at least ``pays``, or needed to ``cover`` the hours.

    A core includes the jobs that gate those, share their hours or run on its pools. Such families stay together; the
    family with the best job is assigned first, each to the group with the least work for its hours.
    """
    np, jobs = matrix.np, snapshot.jobs
    group_of_job = {
        name: number for number, pools in enumerate(groups) for view in pools for run in view.live for name in run.jobs
    }
    hours = [_offered_seconds(snapshot, pools) for pools in groups]
    seconds = np.divide(matrix.steps, matrix.fastest, out=np.zeros(len(jobs)), where=matrix.fastest > 0)
    order = np.argsort(-returns, kind="stable")
    enough = int(np.searchsorted(np.cumsum(seconds[order]), sum(hours) * cover))
    least = min(pays, float(returns[order[min(enough, len(jobs) - 1)]]))
    families = _families(jobs, returns >= max(least, np.finfo(float).tiny), group_of_job)
    families.sort(
        key=lambda family: (
            -max(float(returns[index]) for index in family),
            min(jobs[index].position for index in family),
            min(jobs[index].name for index in family),
        )
    )
    members: list[list[int]] = [[] for _ in groups]
    # A heap of (how often the group's hours are covered, group); a group without hours is never first.
    covered = [(0.0 if offered > 0 else float("inf"), number) for number, offered in enumerate(hours)]
    heapify(covered)
    for family in families:
        fixed = next((group_of_job[jobs[index].name] for index in family if jobs[index].name in group_of_job), None)
        if fixed is None:
            times, number = covered[0]
            heapreplace(covered, (times + float(seconds[family].sum()) / max(1.0, hours[number]), number))
            members[number] += family
        else:
            members[fixed] += family
    return tuple(
        replace(snapshot, jobs=tuple(jobs[index] for index in sorted(core)), pools=tuple(pools))
        for pools, core in zip(groups, members, strict=True)
    )


def _families(jobs: Sequence[JobView], is_core: Bools, home: Collection[str]) -> list[list[int]]:
    """Return the core jobs and those with a live run, with the jobs that gate them or share their hours, by family.

    A family is a list of job indices.
    """
    parents = {job.gate.parent for job in jobs if job.gate is not None}
    index_of = {job.name: index for index, job in enumerate(jobs) if job.name in parents}
    sharing = grouped((job.share.group, index) for index, job in enumerate(jobs) if job.share is not None)
    family_of: dict[int, list[int]] = {}
    stack = [index for index, job in enumerate(jobs) if is_core[index] or job.name in home]
    while stack:
        index = stack.pop()
        job = jobs[index]
        family = family_of.setdefault(index, [index])
        linked = [] if job.share is None else sharing[job.share.group]
        if job.gate is not None and job.gate.parent in index_of:
            linked = [*linked, index_of[job.gate.parent]]
        for other in linked:
            if other not in family_of:
                stack.append(other)
            joined = family_of.setdefault(other, [other])
            if joined is not family:
                small, family = sorted((joined, family), key=len)
                family += small
                family_of.update(dict.fromkeys(small, family))
    return list({id(family): sorted(family) for family in family_of.values()}.values())


def _offered_seconds(snapshot: Snapshot, pools: Sequence[PoolView]) -> float:
    """Return the approximate lane-seconds that ``pools`` offer within the horizon."""
    total = 0.0
    for view in pools:
        pool = view.pool
        end = snapshot.now + snapshot.horizon_seconds
        seconds = float(sum(opening.seconds for opening in pool.open_windows(snapshot.now, end)) * pool.devices_at_once)
        for quota in pool.quotas:
            if isinstance(quota, CalendarQuota):
                windows = len(list(quota.calendar.windows(snapshot.now, end)))
                devices = 1 if quota.by_device else pool.devices_per_session
                seconds = min(seconds, windows * quota.limit_seconds * devices)
        total += seconds
    return total


def bound_of(snapshot: Snapshot, parts: Parts, solved: Sequence[PartPrices]) -> float | None:
    """Return an upper bound of the value of any plan of the whole snapshot, by the mean prices of all groups.

    It lets jobs ignore gates and run several sessions at a time, so it is above the sum of the groups' bounds. It is
    None if the groups have different time spans.
    """
    edges = solved[0].grid.edges
    if any(part.grid.edges != edges for part in solved):
        return None
    prices = _kind_prices(snapshot, parts, solved)

    def bound_at(factors: Floats) -> float:
        table = prices.table * factors[:, None]
        return float((prices.paid * factors).sum()) + parts.matrix.earnings(edges, prices.discount, table)

    return _tightest_bound(bound_at, len(parts.kinds))


def _kind_prices(snapshot: Snapshot, parts: Parts, solved: Sequence[PartPrices]) -> _KindPrices:
    """Return the mean prices of groups with equal time spans."""
    import numpy as np

    edges = solved[0].grid.edges
    sums: dict[tuple[int, int, int, int], list[float]] = {}
    keyed = []
    for part in solved:
        ordinal: dict[tuple[int, int, int], int] = {}
        for limit, price in zip(part.grid.limits, part.prices.tolist(), strict=False):
            span = (part.kinds[limit.market], limit.first, limit.last)
            ordinal[span] = ordinal.get(span, -1) + 1
            key = (*span, ordinal[span])
            sums.setdefault(key, []).append(price)
            keyed.append((key, limit.lane_seconds))
    paid = np.zeros(len(parts.kinds))
    table = np.zeros((len(parts.kinds), len(edges) - 1))
    for key, group_prices in sums.items():
        kind, first, last, _ = key
        table[kind, first:last] += sum(group_prices) / len(group_prices)
    for key, lane_seconds in keyed:
        paid[key[0]] += sum(sums[key]) / len(sums[key]) * lane_seconds
    discount = Discount(snapshot.now, snapshot.horizon_seconds)
    return _KindPrices(table, [discount.at(edge) for edge in edges[:-1]], paid)


def _tightest_bound(bound_at: Callable[[Floats], float], kinds: int) -> float:
    """Return the lowest bound found by scaling the prices kind by kind; any factors give a valid bound."""
    import numpy as np

    factors = np.ones(kinds)
    best = bound_at(factors)
    for step in PRICE_STEPS:
        for kind in range(kinds):
            for factor in (step, 1 / step):
                scaled = factors.copy()
                scaled[kind] *= factor
                bound = bound_at(scaled)
                if bound < best:
                    best, factors = bound, scaled
                    break
    return best
