"""Layers: the one entry of the daemon. Each layer works without those above it, and nothing unverified gets out.

dispatch -> deadlines -> prices by linear programme -> local search -> incumbent kept unless clearly beaten -> verify
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scheduler.core.plan import Plan
from scheduler.planner.agenda import agenda
from scheduler.planner.case import Case, make_case
from scheduler.planner.deadlines import committed
from scheduler.planner.dispatch import PLAIN
from scheduler.planner.grid import make_grid
from scheduler.planner.prices import Prices, dual_prices, scarcity_prices
from scheduler.planner.score import choose
from scheduler.planner.search import NO_BIDS, Candidate, attempt, first_candidates, improve, steps_for
from scheduler.planner.solver import Solver, SolverFailed
from scheduler.planner.verify import verify
from scheduler.planner.waiting import deferrals

if TYPE_CHECKING:
    from scheduler.core.snapshot import Snapshot

# A new plan must be worth this much more than the one in force, or meet more deadlines.
EPSILON = 0.005
# Beyond this many jobs the linear programme is solved over a core and in parts.
WHOLE_JOBS_MAX = 1_500


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may turn off: benchmarks, tests, and an installation without a solver."""

    firm_deadlines: bool = True
    linear: bool = True
    search_steps: int | None = None  # None: by the size of the case
    time_limit_seconds: float = 20.0


ALL_LAYERS = Options()


class Planner:
    """Plans again and again: remembers the solver's last basis, nothing else."""

    def __init__(self, options: Options = ALL_LAYERS) -> None:
        self._options = options
        self._solver: Solver | None = None

    def plan(self, snapshot: Snapshot, incumbent: Plan | None = None) -> Plan:
        """Return the plan from ``snapshot.now`` to the horizon; see :func:`plan_week`."""
        case = make_case(snapshot, firm_deadlines=self._options.firm_deadlines)
        warnings: list[str] = []
        prices, bound = self._prices(case, warnings)
        candidates = first_candidates(case, prices, committed(case))
        best = candidates[choose([found.score for found in candidates])]
        steps = steps_for(case) if self._options.search_steps is None else self._options.search_steps
        best = improve(case, best, prices, steps)
        kept = self._keep(case, incumbent, best, prices)
        made_by = "incumbent" if kept else "prices" if bound is not None else "dispatch"
        plan = _as_plan(case, kept or best, bound, made_by, prices)
        plan = replace(plan, warnings=tuple(warnings))
        violations = verify(snapshot, plan)
        return _fall_back(case, plan, violations) if violations else plan

    def _prices(self, case: Case, warnings: list[str]) -> tuple[Prices, float | None]:
        """Return the prices and the bound; without a solver rough prices, no bound, and a warning that says why."""
        from scheduler.planner.linear import build, hopeful

        grid = make_grid(case)
        if self._options.linear:
            try:
                jobs = hopeful(case)
                if not jobs:
                    return scarcity_prices(case, grid), 0.0
                if self._solver is None:
                    self._solver = Solver(self._options.time_limit_seconds)
                solution = self._solver.solve(build(case, grid, jobs))
                return dual_prices(case, grid, jobs, solution), solution.bound
            except SolverFailed as error:
                warnings.append(f"{error}; planned with rough prices and without a bound")
        return scarcity_prices(case, grid), None

    def _keep(self, case: Case, incumbent: Plan | None, best: Candidate, prices: Prices | None) -> Candidate | None:
        """Return the incumbent carried on, unless the new plan is clearly better."""
        if incumbent is None or not incumbent.placements:
            return None
        policy = replace(best.policy, agenda=agenda(case, incumbent))
        kept = attempt(case, policy, best.bids, prices)
        better = best.score.on_time > kept.score.on_time or best.score.value > kept.score.value * (1 + EPSILON)
        return None if better else kept


def plan_week(snapshot: Snapshot, incumbent: Plan | None = None) -> Plan:
    """Return the plan from ``snapshot.now`` to the horizon.

    ``incumbent`` is the plan in force, which is carried on where nothing clearly better is found. A plan that the
    verifier refuses never leaves: the plain dispatcher's takes its place, or what of it the verifier accepts, and a
    warning says so. Without a solver the plan has no bound and a warning.
    """
    return Planner().plan(snapshot, incumbent)


def _as_plan(case: Case, candidate: Candidate, bound: float | None, made_by: str, prices: Prices | None = None) -> Plan:
    schedule = candidate.schedule
    return Plan(
        made_at=case.now,
        placements=schedule.placements,
        deferrals=deferrals(case, schedule.placements, schedule.gate_passes, prices),
        value=candidate.score.value,
        bound=bound,
        made_by=made_by,
    )


def _fall_back(case: Case, refused: Plan, violations: list[str]) -> Plan:
    """Return the plain dispatcher's plan, or as much of it as the verifier accepts session by session."""
    warning = f"the verifier refused the plan made by {refused.made_by}: {violations[0]}"
    plain = attempt(case, PLAIN, NO_BIDS, None)
    plan = replace(_as_plan(case, plain, refused.bound, "fallback"), warnings=(*refused.warnings, warning))
    if not verify(case.snapshot, plan):
        return plan
    kept = replace(plan, placements=())
    for placement in plan.placements:
        longer = replace(kept, placements=(*kept.placements, placement))
        if not verify(case.snapshot, longer):
            kept = longer
    return replace(kept, deferrals=deferrals(case, kept.placements, {}))
