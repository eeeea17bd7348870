"""Plan diff: the changes from a stored plan to the newest plan, and the sessions that started in between."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from jobs.grouping import grouped
from jobs.nouns.pool import Pool
from jobs.problem import NotFound
from scheduler.core.plan import Placement, Plan
from scheduler.core.run import Run
from scheduler.core.snapshot import Snapshot
from scheduler.planner.questions.differ import PlanComparison, differences
from scheduler.service.facts.snapshot import load_snapshot
from scheduler.store import plans, runs
from scheduler.store.engine import Database


@dataclass(frozen=True, slots=True)
class SessionChange:
    """A planned session that changed. ``after`` is None if it started or is no longer planned."""

    change: Literal["started", "appeared", "vanished", "moved"]
    before: Placement | None
    after: Placement | None


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """Two plans and their differences. Sessions that started in between count for both plans."""

    before: Plan
    after: Plan
    sessions: tuple[SessionChange, ...]
    difference: PlanComparison


def compare(
    database: Database, pools: Mapping[str, Pool], now: int, horizon_seconds: int, since: int | None = None
) -> PlanDiff:
    """Compare the newest plan with the previous plan, or with the newest plan of ``since``. Raises NotFound."""
    with database.read() as tx:
        after = plans.newest(tx)
        if after is None:
            raise NotFound("there is no plan yet", remedy="The daemon makes one: schedctl daemon")
        before = plans.previous(tx, after.made_at if since is None else since + 1)
        if before is None:
            if since is None:
                raise NotFound("there is only one plan so far", remedy="See: schedctl plan show")
            raise NotFound("no plan as old as --since is kept", remedy="Give a later instant, or leave --since out")
        launched = [
            run for run in runs.since(tx, before.made_at) if before.made_at <= run.planned_start < after.made_at
        ]
        snapshot = load_snapshot(tx, pools, now, horizon_seconds)
    changes = session_changes(before, after, launched)
    started = tuple(change.before for change in changes if change.change == "started" and change.before is not None)
    carried = replace(after, placements=(*started, *after.placements))
    return PlanDiff(before, after, changes, differences(_as_then(snapshot, launched), before, carried))


def session_changes(before: Plan, after: Plan, launched: Sequence[Run]) -> tuple[SessionChange, ...]:
    """Return the sessions that differ, sorted by start; ``launched`` are the runs reserved between the two plans."""
    changes: list[SessionChange] = []
    runs = grouped(
        ((run.pool, frozenset(lane.job for lane in run.lanes if lane.begun_at is None)), run) for run in launched
    )
    new = dict(enumerate(sorted(after.placements, key=_by_start)))
    same = grouped((_key(placement), number) for number, placement in new.items())
    alike = grouped((_jobs(placement), number) for number, placement in new.items())
    old: list[Placement] = []
    for placement in sorted(before.placements, key=_by_start):
        candidates = runs.get((placement.pool, _jobs(placement)), [])
        overlap = (r for r in candidates if placement.start < r.deadline and r.planned_start < placement.end)
        started = next(overlap, None)
        if started is not None:
            candidates.remove(started)
            changes.append(SessionChange("started", placement, None))
        elif twins := same.get(_key(placement)):
            del new[twins.pop(0)]
        else:
            old.append(placement)
    for placement in old:
        moved = [number for number in alike.get(_jobs(placement), ()) if number in new]
        if moved:
            target = min(moved, key=lambda number: (new[number].pool != placement.pool, new[number].start))
            changes.append(SessionChange("moved", placement, new.pop(target)))
        else:
            changes.append(SessionChange("vanished", placement, None))
    changes += [SessionChange("appeared", None, placement) for placement in new.values()]
    return tuple(sorted(changes, key=lambda change: min(_by_start(p) for p in (change.before, change.after) if p)))


def _as_then(snapshot: Snapshot, launched: Sequence[Run]) -> Snapshot:
    """Return the snapshot with the jobs' steps before the runs in between, so that both plans start from one state.

    Those runs count as planned sessions, so their steps are not counted twice.
    """
    steps: dict[str, int] = {}
    for run in launched:
        for lane in run.lanes:
            steps.setdefault(lane.job, lane.restore_step or 0)
    keys = {run.key for run in launched}
    jobs = tuple(replace(job, done_step=steps.get(job.name, job.done_step)) for job in snapshot.jobs)
    pools = tuple(replace(view, live=tuple(run for run in view.live if run.key not in keys)) for view in snapshot.pools)
    return replace(snapshot, jobs=jobs, pools=pools)


def _jobs(placement: Placement) -> frozenset[str]:
    return frozenset(lane.job for lane in placement.lanes)


def _key(placement: Placement) -> tuple[str, int, int, frozenset[str]]:
    return placement.pool, placement.start, placement.end, _jobs(placement)


def _by_start(placement: Placement) -> tuple[int, str]:
    return placement.start, placement.pool
