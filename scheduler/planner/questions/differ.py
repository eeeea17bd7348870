"""Differ: the differences between two plans, per job and per pool."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jobs.grouping import grouped
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.snapshot import JobView, LiveRun, Snapshot
from scheduler.planner.model.case import expected_of_live_runs


@dataclass(frozen=True, slots=True)
class JobOutlook:
    """One job in a plan: start and finish (None: not within the horizon), session seconds, steps.

    A job in a live run started with that run; the steps that the run will still checkpoint count.
    """

    start: int | None
    finish: int | None
    session_seconds: int
    steps: int
    on_time: bool | None  # None: it has no deadline


@dataclass(frozen=True, slots=True)
class JobChange:
    """A job whose outlook differs; ``before`` or ``after`` is None if that plan does not have the job."""

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
class PlanComparison:
    """All differences of two plans; values in weighted, discounted useful hours."""

    jobs: tuple[JobChange, ...]
    pools: tuple[PoolChange, ...]
    value_before: float
    value_after: float

    @property
    def nothing(self) -> bool:
        """Whether both plans are the same for every job and pool."""
        return not self.jobs and not self.pools


def differences(snapshot: Snapshot, before: Plan, after: Plan) -> PlanComparison:
    """Return the changes from ``before`` to ``after``; remaining work and deadlines are those of ``snapshot``."""
    old, new = outlooks(snapshot, before), outlooks(snapshot, after)
    jobs = tuple(
        JobChange(name, old.get(name), new.get(name)) for name in sorted({*old, *new}) if old.get(name) != new.get(name)
    )
    seconds_old, seconds_new = _seconds_by_pool(before.placements), _seconds_by_pool(after.placements)
    pools = tuple(
        PoolChange(name, seconds_old.get(name, 0), seconds_new.get(name, 0))
        for name in sorted({*seconds_old, *seconds_new})
        if seconds_old.get(name, 0) != seconds_new.get(name, 0)
    )
    return PlanComparison(jobs, pools, before.value, after.value)


def outlook(snapshot: Snapshot, plan: Plan, job: str) -> JobOutlook:
    """Return the outlook of ``job`` in ``plan``; raises KeyError for a job that is not in ``snapshot``."""
    view = next((each for each in snapshot.jobs if each.name == job), None)
    if view is None:
        raise KeyError(job)
    return outlooks(replace(snapshot, jobs=(view,)), plan).get(job) or _outlook(view, (), None)


def outlooks(snapshot: Snapshot, plan: Plan) -> dict[str, JobOutlook]:
    """Return the outlook in ``plan`` of each open job that is planned or runs now, by name."""
    by_start = sorted(plan.placements, key=lambda placed: placed.start)
    planned_lanes = grouped((lane.job, (placement, lane)) for placement in by_start for lane in placement.lanes)
    live = expected_of_live_runs(snapshot)
    return {
        job.name: _outlook(job, planned_lanes.get(job.name, ()), live.get(job.name))
        for job in snapshot.jobs
        if job.name in planned_lanes or job.name in live
    }


def _outlook(
    view: JobView, planned_lanes: Sequence[tuple[Placement, PlannedLane]], live: tuple[LiveRun, int] | None
) -> JobOutlook:
    start = finish = None
    seconds = steps = 0
    if live is not None:
        run, steps = live
        start, finish = run.start, run.deadline if steps >= view.remaining_steps else None
    for placement, lane in planned_lanes:
        start = placement.start if start is None else start
        seconds += placement.end - placement.start
        steps += lane.steps
        if steps >= view.remaining_steps and finish is None:
            finish = placement.end
    on_time = None if view.deadline is None else finish is not None and finish <= view.deadline
    return JobOutlook(start, finish, seconds, steps, on_time)


def _seconds_by_pool(placements: tuple[Placement, ...]) -> dict[str, int]:
    seconds: dict[str, int] = {}
    for placement in placements:
        seconds[placement.pool] = seconds.get(placement.pool, 0) + placement.end - placement.start
    return seconds
