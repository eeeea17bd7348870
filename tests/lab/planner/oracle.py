"""Oracle: the exact optimum of small cases by CP-SAT, to the second. Development only, and a process of its own.

    python -m tests.lab.planner.oracle < cases.jsonl    one case a line, one answer a line

It shares nothing with the planner but the problem: sessions are optional intervals per job and pool, quotas count
overlaps with windows, worth is a falling step function of time. Cases are plain: one device a session, whole steps a
second, free checkpoints, no stop margin, daily quotas. Given ``fixed`` sessions it only judges those.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar

# Worth per step in units of 1 / SCALE: g in halves of up to three days and lateness in tenths come out whole.
SCALE = 600


@dataclass(frozen=True, slots=True)
class OraclePool:
    """``windows`` are (start, end, seconds allowed), from the instant zero of the case."""

    name: str
    sessions_max: int
    cap: int
    minimum: int
    windows: list[list[int]]


@dataclass(frozen=True, slots=True)
class OracleJob:
    """``worth`` are (until, worth of a step in units of 1 / SCALE), falling; after the last it is nothing."""

    name: str
    steps: int
    speeds: dict[str, int]
    setup: int
    worth: list[list[int]]
    parent: str | None
    gate_steps: int


@dataclass(frozen=True, slots=True)
class OracleCase:
    """``fixed`` are sessions (job, pool, start, end) to be judged instead of looking for better ones."""

    horizon: int
    pools: list[OraclePool]
    jobs: list[OracleJob]
    fixed: list[list[Any]] | None = None
    seconds_max: float = 120.0  # of a machine that others use as well; a few are enough

    def to_json(self) -> str:
        """Return the case as the oracle reads it."""
        return json.dumps(asdict(self))


def read_case(text: str) -> OracleCase:
    """Rebuild a case from :meth:`OracleCase.to_json`."""
    data = json.loads(text)
    return OracleCase(
        data["horizon"],
        [OraclePool(**pool) for pool in data["pools"]],
        [OracleJob(**job) for job in data["jobs"]],
        data["fixed"],
        data["seconds_max"],
    )


@dataclass(frozen=True, slots=True)
class _Visit:
    """One optional session; ``begin`` is when its set-up ends."""

    job: OracleJob
    pool: OraclePool
    present: Any
    start: Any
    begin: Any
    end: Any
    useful: Any
    steps: Any
    interval: Any


class _Model:
    def __init__(self, case: OracleCase) -> None:
        from ortools.sat.python import cp_model

        self.case = case
        self.model: CpModel = cp_model.CpModel()
        self.last = case.horizon + max(pool.cap for pool in case.pools)
        self.visits = [visit for job in case.jobs for pool in case.pools for visit in self._visits(job, pool)]
        self.terms: list[Any] = []
        for pool in case.pools:
            self._pool(pool)
        for job in case.jobs:
            self._job(job)
        self.model.maximize(sum(self.terms))

    def _seconds(self, name: str, most: int | None = None) -> IntVar:
        return self.model.new_int_var(0, self.last if most is None else most, name)

    def _visits(self, job: OracleJob, pool: OraclePool) -> list[_Visit]:
        if pool.name not in job.speeds:
            return []
        fixed = [found for found in self.case.fixed or [] if found[:2] == [job.name, pool.name]]
        least = job.setup + min(pool.minimum, -(-job.steps // job.speeds[pool.name]))
        count = 1 + job.steps // max(1, pool.minimum * job.speeds[pool.name])
        count = min(count, sum(1 + seconds // least for _, _, seconds in pool.windows))
        if self.case.fixed is not None:
            count = len(fixed)
        model = self.model
        found: list[_Visit] = []
        for number in range(count):
            what = f"{job.name} {pool.name} {number}"
            present, start, end = model.new_bool_var(what), self._seconds(what), self._seconds(what)
            useful, length = self._seconds(what, pool.cap), self._seconds(what, pool.cap)
            model.add(start < self.case.horizon)
            model.add(length == useful + job.setup).only_enforce_if(present)
            steps = model.new_int_var(0, job.steps, what)
            model.add(steps <= useful * job.speeds[pool.name])
            model.add(steps > (useful - 1) * job.speeds[pool.name]).only_enforce_if(present)
            model.add(useful >= 1).only_enforce_if(present)
            model.add(useful == 0).only_enforce_if(~present)
            interval = model.new_optional_interval_var(start, length, end, present, what)
            if found:
                model.add_implication(present, found[-1].present)
                model.add(found[-1].end <= start).only_enforce_if(present)
            if self.case.fixed is not None:
                model.add(present == 1)
                model.add(start == fixed[number][2])
                model.add(end == fixed[number][3])
            begin = self._seconds(what, self.last + job.setup)
            model.add(begin == start + job.setup)
            found.append(_Visit(job, pool, present, start, begin, end, useful, steps, interval))
        return found

    def _pool(self, pool: OraclePool) -> None:
        mine = [visit for visit in self.visits if visit.pool is pool]
        if mine:
            self.model.add_cumulative([visit.interval for visit in mine], [1] * len(mine), pool.sessions_max)
        charged = {visit.start.name: [self._overlap(visit, *window[:2]) for window in pool.windows] for visit in mine}
        for number, (_, _, allowed) in enumerate(pool.windows):
            self.model.add(sum(found[number] for found in charged.values()) <= allowed)
        for visit in mine:
            # Follows from the overlaps as long as the windows tile time; said in so many words it bounds tightly.
            whole = sum(charged[visit.start.name])
            self.model.add(whole == visit.useful + visit.job.setup).only_enforce_if(visit.present)
            self.model.add(whole == visit.useful + visit.job.setup * visit.present)

    def _overlap(self, visit: _Visit, opens: int, closes: int) -> IntVar:
        left, right = self._seconds("left"), self._seconds("right")
        overlap, charged = self._seconds("overlap"), self._seconds("charged")
        self.model.add_max_equality(left, [visit.start, opens])
        self.model.add_min_equality(right, [visit.end, closes])
        self.model.add_max_equality(overlap, [right - left, 0])
        self.model.add(charged == overlap).only_enforce_if(visit.present)
        self.model.add(charged == 0).only_enforce_if(~visit.present)
        return charged

    def _job(self, job: OracleJob) -> None:
        model = self.model
        mine = [visit for visit in self.visits if visit.job is job]
        if not mine:
            return
        model.add_no_overlap([visit.interval for visit in mine])
        steps = sum(visit.steps for visit in mine)
        model.add(steps <= job.steps)
        whole = model.new_bool_var(f"{job.name} done")
        model.add(steps == job.steps).only_enforce_if(whole)
        for visit in mine:
            # A session shorter than the pool's minimum is allowed to the one that ends the job.
            short = model.new_bool_var("short")
            model.add(visit.useful >= visit.pool.minimum).only_enforce_if(visit.present, ~short)
            model.add_implication(short, whole)
            for other in mine:
                if other is not visit:
                    model.add(other.end <= visit.start).only_enforce_if(short, other.present, visit.present)
            self._worth(job, visit)
        if job.parent is not None:
            self._gate(job, mine)

    def _worth(self, job: OracleJob, visit: _Visit) -> None:
        """A falling worth is the sum of falls, each times what is trained before it."""
        for (until, worth), following in zip(job.worth, [*(w for _, w in job.worth[1:]), 0], strict=True):
            before = self.model.new_int_var(0, job.steps, "before")
            self.model.add(before <= job.speeds[visit.pool.name] * self._trained_by(visit, until))
            self.model.add(before <= visit.steps)
            self.terms.append((worth - following) * before)

    def _trained_by(self, visit: _Visit, instant: int | IntVar) -> IntVar:
        """Return at most the seconds that ``visit`` has trained at ``instant``."""
        before, since = self._seconds("before", visit.pool.cap), self._seconds("since")
        self.model.add_max_equality(since, [instant - visit.begin, 0])
        self.model.add(before <= since)
        self.model.add(before <= visit.useful)
        return before

    def _gate(self, job: OracleJob, mine: list[_Visit]) -> None:
        passes = self._seconds("gate")
        trained = sum(
            self._trained_by(visit, passes) * visit.job.speeds[visit.pool.name]
            for visit in self.visits
            if visit.job.name == job.parent
        )
        for visit in mine:
            self.model.add(trained >= job.gate_steps).only_enforce_if(visit.present)
            self.model.add(visit.start >= passes).only_enforce_if(visit.present)


def solve(case: OracleCase) -> dict[str, Any]:
    """Return status, value and bound in weighted hours, and the sessions found as (job, pool, start, end, steps)."""
    from ortools.sat.python import cp_model

    built = _Model(case)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    solver.parameters.max_time_in_seconds = case.seconds_max
    status = solver.solve(built.model)
    if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        return {"status": solver.status_name(status).lower(), "value": None, "bound": None, "sessions": []}
    hours = SCALE * 3_600
    sessions = [
        [
            visit.job.name,
            visit.pool.name,
            solver.value(visit.start),
            solver.value(visit.end),
            solver.value(visit.steps),
        ]
        for visit in built.visits
        if solver.value(visit.present)
    ]
    return {
        "status": solver.status_name(status).lower(),
        "value": solver.objective_value / hours,
        "bound": solver.best_objective_bound / hours,
        "sessions": sessions,
    }


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(solve(read_case(line))))
