"""Scale: very many jobs and pools in parts. Families and pools are dealt into groups; each keeps a core that matters.

A core holds the densest families whose work covers a multiple of the group's hours. What lies below it cannot pay the
prices; the mean prices of all groups prove how much the whole plan could still miss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scheduler.core.plan import Deferral
from scheduler.core.quota import CalendarQuota
from scheduler.core.reasons import GateClosed, NoAllowedPool, NotReleased, Outbid
from scheduler.planner.lp.job_matrix import JobMatrix, kind_of
from scheduler.planner.model.value import Discount

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scheduler.core.reasons import Reason
    from scheduler.core.snapshot import JobView, PoolView, Snapshot
    from scheduler.planner.lp.grid import Grid
    from scheduler.planner.lp.job_matrix import Floats

# The work of a core covers the hours of its pools this many times.
COVER = 3.6
PRICE_STEPS = (1.2, 1.2, 1.1, 1.05, 1.02)
POOLS_PER_GROUP = 20


@dataclass(frozen=True, slots=True)
class Parts:
    """The groups, each a snapshot with its core's jobs only, and what is known of everybody."""

    snapshots: tuple[Snapshot, ...]
    matrix: JobMatrix
    kinds: dict[tuple[object, ...], int]


@dataclass(frozen=True, slots=True)
class Solved:
    """One group's linear programme: the kind of pool of each of its markets, and the prices of its limits."""

    grid: Grid
    kinds: Sequence[int]
    prices: Floats


def divide(snapshot: Snapshot) -> Parts:
    """Deal pools and families evenly into groups and cut every group down to its core."""
    views = sorted(snapshot.pools, key=lambda view: view.pool.name)
    by_kind: dict[tuple[object, ...], list[PoolView]] = {}
    for view in views:
        by_kind.setdefault(kind_of(view.pool), []).append(view)
    matrix = JobMatrix(snapshot, [found[0].pool for found in by_kind.values()])
    smallest = min(len(found) for found in by_kind.values())
    count = max(1, min(smallest, len(views) // POOLS_PER_GROUP))
    groups: list[list[PoolView]] = [[] for _ in range(count)]
    for found in by_kind.values():
        for number, view in enumerate(found):
            groups[number % count].append(view)
    members = _deal(snapshot, matrix, groups)
    snapshots = tuple(
        replace(snapshot, jobs=tuple(jobs), pools=tuple(pools)) for pools, jobs in zip(groups, members, strict=True)
    )
    return Parts(snapshots, matrix, {kind: number for number, kind in enumerate(by_kind)})


def below_the_core(snapshot: Snapshot, parts: Parts) -> list[Deferral]:
    """Return why the jobs that no group plans are waiting."""
    planned = {job.name for part in parts.snapshots for job in part.jobs}
    progress = {job.name: job.done_step / max(1, job.target_step) for job in snapshot.jobs}
    progress.update(snapshot.finished)
    views = sorted(snapshot.pools, key=lambda view: view.pool.name)
    firsts = {kind_of(view.pool): view.pool.name for view in reversed(views)}
    # Whoever may use a pool mostly may use the first of its kind: one look instead of hundreds.
    names = sorted((view.pool.name for view in views), key=lambda name: (name not in firsts.values(), name))
    outbid = {
        name: Outbid(name, "denser work that fills the hours several times over", None, None, None) for name in names
    }
    return [
        Deferral(job.name, _reason(job, snapshot.now, progress, outbid))
        for job in sorted(snapshot.jobs, key=lambda view: (view.position, view.name))
        if job.name not in planned and job.running is None and job.remaining_steps > 0
    ]


def _reason(job: JobView, now: int, progress: Mapping[str, float], outbid: Mapping[str, Outbid]) -> Reason:
    if job.blocked is not None:
        return job.blocked
    release = max(job.not_before or 0, job.retry_at or 0)
    if release > now:
        return NotReleased(release, "waits after a failure" if release == job.retry_at else "not to start")
    if job.gate is not None and progress.get(job.gate.parent, 0.0) < job.gate.fraction:
        return GateClosed(job.gate.parent, progress.get(job.gate.parent, 0.0), job.gate.fraction)
    return next((found for name, found in outbid.items() if name in job.rates), NoAllowedPool(job.allowed_pools))


def _deal(snapshot: Snapshot, matrix: JobMatrix, groups: Sequence[Sequence[PoolView]]) -> list[list[JobView]]:
    """Give each group its families, densest first, until their work covers its hours often enough."""
    density = matrix.density().tolist()
    fastest = matrix.rate.max(axis=1).tolist()
    families: dict[str, list[int]] = {}
    roots = _roots(snapshot)
    for index, job in enumerate(snapshot.jobs):
        families.setdefault(roots[job.name], []).append(index)
    hours = [_offered_seconds(snapshot, pools) * COVER for pools in groups]
    home = {
        name: number for number, pools in enumerate(groups) for view in pools for run in view.live for name in run.jobs
    }
    ranked = sorted(
        families.values(),
        key=lambda family: (
            -max(density[index] for index in family),
            min(snapshot.jobs[index].position for index in family),
            min(snapshot.jobs[index].name for index in family),
        ),
    )
    members: list[list[JobView]] = [[] for _ in groups]
    turn = 0
    for family in ranked:
        jobs = [snapshot.jobs[index] for index in family]
        fixed = next((home[job.name] for job in jobs if job.name in home), None)
        number = turn % len(groups) if fixed is None else fixed
        turn += fixed is None
        if hours[number] <= 0 and fixed is None:
            continue
        members[number] += jobs
        hours[number] -= sum(
            snapshot.jobs[index].remaining_steps / fastest[index] for index in family if fastest[index] > 0
        )
    return members


def _roots(snapshot: Snapshot) -> dict[str, str]:
    """Return by job the first ancestor that no open job gates, nor shares its hours with."""
    parents = {
        job.name: job.gate.parent if job.gate is not None else job.share.group if job.share is not None else None
        for job in snapshot.jobs
    }
    roots = {}
    for name in parents:
        root, seen = name, {name}
        while (parent := parents.get(root)) is not None and parent in parents and parent not in seen:
            root = parent
            seen.add(root)
        roots[name] = root
    return roots


def _offered_seconds(snapshot: Snapshot, pools: Sequence[PoolView]) -> float:
    """Return roughly how many lane-seconds ``pools`` offer within the horizon."""
    total = 0.0
    for view in pools:
        pool = view.pool
        end = snapshot.now + snapshot.horizon_seconds
        seconds = float(sum(found.seconds for found in pool.open_windows(snapshot.now, end)) * pool.devices_at_once)
        for quota in pool.quotas:
            if isinstance(quota, CalendarQuota):
                windows = len(list(quota.calendar.windows(snapshot.now, end)))
                seconds = min(
                    seconds, windows * quota.limit_seconds * (1 if quota.by_device else pool.devices_per_session)
                )
        total += seconds
    return total


def bound_of(snapshot: Snapshot, parts: Parts, solved: Sequence[Solved]) -> float | None:
    """Return what no plan of the whole can exceed, by the mean prices of all groups.

    Gates and the time of single jobs are left out, so the figure lies above the groups' own. None when time is cut
    differently in the groups.
    """
    import numpy as np

    edges = solved[0].grid.edges
    if any(found.grid.edges != edges for found in solved):
        return None
    sums: dict[tuple[int, int, int, int], list[float]] = {}
    keyed = []
    for found in solved:
        ordinal: dict[tuple[int, int, int], int] = {}
        for limit, price in zip(found.grid.limits, found.prices.tolist(), strict=False):
            place = (found.kinds[limit.market], limit.first, limit.last)
            ordinal[place] = ordinal.get(place, -1) + 1
            key = (*place, ordinal[place])
            sums.setdefault(key, []).append(price)
            keyed.append((key, limit.lane_seconds))
    paid = np.zeros(len(parts.kinds))
    table = np.zeros((len(parts.kinds), len(edges) - 1))
    for key, several in sums.items():
        kind, first, last, _ = key
        table[kind, first:last] += sum(several) / len(several)
    for key, lane_seconds in keyed:
        paid[key[0]] += sum(sums[key]) / len(sums[key]) * lane_seconds
    discount = Discount(snapshot.now, snapshot.horizon_seconds)
    worth = [discount.at(edge) for edge in edges[:-1]]

    def proven(factors: Floats) -> float:
        return float((paid * factors).sum()) + parts.matrix.earnings(edges, worth, table * factors[:, None])

    return _lowest(proven, len(parts.kinds))


def _lowest(proven: Callable[[Floats], float], kinds: int) -> float:
    """Return the lowest of the bounds that prices scaled kind by kind prove; any factors prove one."""
    import numpy as np

    factors = np.ones(kinds)
    best = proven(factors)
    for step in PRICE_STEPS:
        for kind in range(kinds):
            for factor in (step, 1 / step):
                tried = factors.copy()
                tried[kind] *= factor
                found = proven(tried)
                if found < best:
                    best, factors = found, tried
                    break
    return best
