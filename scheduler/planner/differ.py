"""Differ: what changes from one plan to another, per job and per pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.core.plan import Placement, Plan
    from scheduler.core.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class JobOutlook:
    """What a plan means to one job: when it starts and finishes (None: not within the horizon), seconds, steps."""

    start: int | None
    finish: int | None
    session_seconds: int
    steps: int
    on_time: bool | None  # None: it has no deadline


@dataclass(frozen=True, slots=True)
class JobChange:
    """A job whose outlook differs; ``before`` is None for a job only the second plan knows."""

    job: str
    before: JobOutlook | None
    after: JobOutlook | None


@dataclass(frozen=True, slots=True)
class PoolChange:
    """A pool whose planned seconds differ."""

    pool: str
    seconds_before: int
    seconds_after: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Everything that differs; value in weighted discounted useful hours."""

    jobs: tuple[JobChange, ...]
    pools: tuple[PoolChange, ...]
    value_before: float
    value_after: float

    @property
    def nothing(self) -> bool:
        """Whether both plans do the same."""
        return not self.jobs and not self.pools


def differences(snapshot: Snapshot, before: Plan, after: Plan) -> Difference:
    """Return what changes from ``before`` to ``after``; ``snapshot`` tells remaining work and deadlines."""
    old, new = _outlooks(snapshot, before), _outlooks(snapshot, after)
    jobs = tuple(
        JobChange(name, old.get(name), new.get(name)) for name in sorted({*old, *new}) if old.get(name) != new.get(name)
    )
    seconds_old, seconds_new = _seconds_by_pool(before.placements), _seconds_by_pool(after.placements)
    pools = tuple(
        PoolChange(name, seconds_old.get(name, 0), seconds_new.get(name, 0))
        for name in sorted({*seconds_old, *seconds_new})
        if seconds_old.get(name, 0) != seconds_new.get(name, 0)
    )
    return Difference(jobs, pools, before.value, after.value)


def outlook(snapshot: Snapshot, plan: Plan, job: str) -> JobOutlook:
    """Return what ``plan`` means to ``job``; raises StopIteration for a job the snapshot does not hold."""
    view = next(found for found in snapshot.jobs if found.name == job)
    start = finish = None
    seconds = steps = 0
    for placement in sorted(plan.placements, key=lambda found: found.start):
        for seat in placement.seats:
            if seat.job != job:
                continue
            start = placement.start if start is None else start
            seconds += placement.end - placement.start
            steps += seat.steps
            if steps >= view.remaining_steps and finish is None:
                finish = placement.end
    on_time = None if view.deadline is None else finish is not None and finish <= view.deadline
    return JobOutlook(start, finish, seconds, steps, on_time)


def churn(before: Plan, after: Plan, start: int, end: int) -> float:
    """Return the share of job-seconds of [start, end) that ``after`` gives to another pool or instant."""
    old, new = _seats(before, start, end), _seats(after, start, end)
    total = sum(stop - begin for spans in old.values() for begin, stop in spans)
    kept = 0
    for key, spans in old.items():
        for begin, stop in spans:
            kept += sum(max(0, min(stop, e) - max(begin, b)) for b, e in new.get(key, ()))
    return 1 - kept / total if total else 0.0


def _outlooks(snapshot: Snapshot, plan: Plan) -> dict[str, JobOutlook]:
    planned = {seat.job for placement in plan.placements for seat in placement.seats}
    return {job.name: outlook(snapshot, plan, job.name) for job in snapshot.jobs if job.name in planned}


def _seconds_by_pool(placements: tuple[Placement, ...]) -> dict[str, int]:
    seconds: dict[str, int] = {}
    for placement in placements:
        seconds[placement.pool] = seconds.get(placement.pool, 0) + placement.end - placement.start
    return seconds


def _seats(plan: Plan, start: int, end: int) -> dict[tuple[str, str], list[tuple[int, int]]]:
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for placement in plan.placements:
        begin, stop = max(placement.start, start), min(placement.end, end)
        if stop > begin:
            for seat in placement.seats:
                found.setdefault((seat.job, placement.pool), []).append((begin, stop))
    return found
