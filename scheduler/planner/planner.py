"""Planner: the one entry of the daemon. Each layer works without those above it, and nothing unverified gets out.

dispatch -> deadlines -> prices by linear programme -> local search -> incumbent kept unless clearly beaten -> verify
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from scheduler.core.plan import Deferral, Placement, Plan
from scheduler.core.snapshot import Snapshot
from scheduler.planner.dispatch.dispatcher import fill_gaps
from scheduler.planner.dispatch.incumbent import pinned_sessions
from scheduler.planner.dispatch.tie_break import in_queue_order
from scheduler.planner.dispatch.waiting import deferrals
from scheduler.planner.lp.grid import Grid, make_grid
from scheduler.planner.lp.job_matrix import kind_of
from scheduler.planner.lp.prices import Prices, dual_prices, scarcity_prices
from scheduler.planner.lp.scale import (
    PartPrices,
    Parts,
    bound_of,
    deferrals_outside_cores,
    split_by_prices,
    split_snapshot,
)
from scheduler.planner.lp.solver import LinearSolver, Solution, Solver, SolverFailed
from scheduler.planner.lp.targets import targets
from scheduler.planner.model.case import Case, make_case
from scheduler.planner.model.forecast import expected
from scheduler.planner.model.policy import PLAIN, Policy, Schedule
from scheduler.planner.model.value import value
from scheduler.planner.search.candidates import Candidate, attempt, first_choice, targeted_choice
from scheduler.planner.search.conserve import conserve
from scheduler.planner.search.deadlines import deadline_policies, drop_needless_urgency
from scheduler.planner.search.in_turn import take_turns
from scheduler.planner.search.policies import improve, steps_for
from scheduler.planner.search.score import finishes_all, score, weighted_flow_time
from scheduler.planner.verify import verify

# A new plan must be worth this much more than the one in force, or meet more deadlines.
EPSILON = 0.01
# By luck alone one search finds so much more than another; no plan is changed for that.
SEARCHED_EPSILON = 0.02
# A plan by which work is done sooner by this much, by weight, is followed as well: a short job that has just come adds
# nearly nothing to the value of a week.
SOONER_EPSILON = 0.005
# Beyond this many jobs pools and jobs are planned in parts.
WHOLE_JOBS_MAX = 1_500


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """What a caller may turn off: benchmarks, tests, and an installation without a solver."""

    firm_deadlines: bool = True
    linear: bool = True
    search_steps: int | None = None  # None: by the size of the case
    time_limit_seconds: float = 120.0  # of a solver that hangs; what it may do is bounded by its steps
    few_candidates: bool = False  # one for each way to keep deadlines: for parts of very many jobs, and quick looks
    solver: Callable[[float], LinearSolver] = Solver  # makes one from its time limit


ALL_LAYERS = PlannerOptions()


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """What all layers together found for one case."""

    candidate: Candidate
    prices: Prices
    bound: float | None
    made_by: str
    solved: tuple[Grid, Solution] | None


class Planner:
    """Plans again and again: remembers the solver's last basis, nothing else."""

    def __init__(self, options: PlannerOptions = ALL_LAYERS) -> None:
        self._options = options
        self._solver: LinearSolver | None = None

    def plan(self, snapshot: Snapshot, incumbent: Plan | None = None) -> Plan:
        """Return the plan from ``snapshot.now`` to the horizon; see :func:`plan_week`."""
        return self.plan_and_policy(snapshot, incumbent)[0]

    def plan_and_policy(self, snapshot: Snapshot, incumbent: Plan | None) -> tuple[Plan, Policy]:
        """Return the plan and the policy that made it; of a plan in parts the plain one."""
        if len(snapshot.jobs) > WHOLE_JOBS_MAX:
            return self._plan_in_parts(snapshot, incumbent), PLAIN
        case = make_case(snapshot, firm_deadlines=self._options.firm_deadlines)
        warnings: list[str] = []
        choice = self.choose(case, incumbent, warnings)
        plan = _as_plan(case, choice)
        plan = replace(plan, warnings=tuple(warnings))
        violations = verify(snapshot, plan)
        if violations:
            plan = _fall_back(case, plan, choice.candidate.schedule.gate_passes, violations)
        return plan, choice.candidate.policy

    def glance(self, snapshot: Snapshot, policy: Policy) -> Schedule:
        """Return the sessions of one candidate that puts jobs first as ``policy`` does: a fraction of a plan's work."""
        case = make_case(snapshot, firm_deadlines=self._options.firm_deadlines)
        plain = Policy(urgent=policy.urgent, foresight_seconds=policy.foresight_seconds)
        return targeted_choice(case, self.prices(case, [])[0], [plain]).schedule

    def choose(self, case: Case, incumbent: Plan | None, warnings: list[str]) -> PlanChoice:
        """Return the best schedule that all layers together find."""
        prices, bound, solved = self.prices(case, warnings)
        policies = drop_needless_urgency(case, deadline_policies(case))
        if self._options.few_candidates:
            best = targeted_choice(case, prices, policies)
        else:
            best = first_choice(case, prices, policies)
        steps = steps_for(case) if self._options.search_steps is None else self._options.search_steps
        best = improve(case, best, prices, steps)
        best = take_turns(case, best)
        carried = self._keep(case, incumbent, best, prices, SEARCHED_EPSILON if steps > 0 else EPSILON)
        made_by = "incumbent" if carried else "prices" if bound is not None else "dispatch"
        chosen = carried or best
        schedule = conserve(case, chosen.schedule, chosen.policy)
        if schedule is not chosen.schedule:
            chosen = replace(chosen, schedule=schedule, score=score(case, schedule))
        return PlanChoice(take_turns(case, chosen), prices, bound, made_by, solved)

    def prices(self, case: Case, warnings: list[str]) -> tuple[Prices, float | None, tuple[Grid, Solution] | None]:
        """Return the prices and the bound; without a solver rough prices, no bound, and a warning that says why."""
        from scheduler.planner.lp.linear import build, plannable_jobs, unpriceable_jobs

        # Parts cut time alike, however many jobs they have: their prices are compared.
        grid = make_grid(case, fine=not self._options.few_candidates)
        if self._options.linear:
            try:
                jobs = plannable_jobs(case)
                beyond = unpriceable_jobs(case, jobs)
                jobs = [job for job in jobs if job not in beyond]
                if not jobs:
                    return scarcity_prices(case, grid), 0.0, None
                if self._solver is None:
                    self._solver = self._options.solver(self._options.time_limit_seconds)
                programme = build(case, grid, jobs)
                solution = self._solver.solve(programme)
                prices = dual_prices(case, grid, jobs, solution, targets(case, grid, programme, solution))
                return prices, solution.bound + sum(beyond.values()), (grid, solution)
            except (SolverFailed, ImportError) as error:
                why = error if isinstance(error, SolverFailed) else f"no linear plan: {error}"
                warnings.append(f"{why}; planned with rough prices and without a bound")
        return scarcity_prices(case, grid), None, None

    def _plan_in_parts(self, snapshot: Snapshot, incumbent: Plan | None) -> Plan:
        """Plan each group of pools with its core of jobs, and join."""
        parts = split_snapshot(snapshot)
        options = replace(self._options, few_candidates=True)
        with _garbage_collected():
            sample = make_case(parts.snapshots[0], firm_deadlines=options.firm_deadlines)
            sample_prices = _part_prices(parts, sample, Planner(options).prices(sample, [])[2])
            del sample
        if sample_prices is not None:
            parts = split_by_prices(snapshot, parts, sample_prices)
        plans = []
        for part in parts.snapshots:
            with _garbage_collected():
                plans.append(_plan_part(options, parts, part, incumbent))
        placements = [placement for one in plans for placement in one.placements]
        waiting = [deferral for one in plans for deferral in one.deferrals]
        warnings = [warning for one in plans for warning in one.warnings]
        solved = [one.solved for one in plans if one.solved is not None]
        placements.sort(key=lambda placed: (placed.start, placed.pool, placed.lanes[0].job))
        plan = Plan(
            made_at=snapshot.now,
            placements=tuple(placements),
            deferrals=(*waiting, *deferrals_outside_cores(snapshot, parts)),
            value=sum(one.value for one in plans),
            bound=bound_of(snapshot, parts, solved) if len(solved) == len(parts.snapshots) else None,
            made_by="parts",
            warnings=tuple(sorted(set(warnings))),
        )
        violations = verify(snapshot, plan)
        if not violations:
            return plan
        return _fall_back(make_case(snapshot), plan, {}, violations)

    def _keep(
        self, case: Case, incumbent: Plan | None, best: Candidate, prices: Prices | None, epsilon: float
    ) -> Candidate | None:
        """Return the incumbent carried on, unless the new plan is worth more by ``epsilon`` or done clearly sooner."""
        if incumbent is None or not incumbent.placements:
            return None
        policy = replace(best.policy, pinned=pinned_sessions(case, incumbent))
        carried = attempt(case, policy, best.bids, prices)
        better = best.score.on_time > carried.score.on_time or best.score.value > carried.score.value * (1 + epsilon)
        finishes = finishes_all(case, best.schedule)
        sooner = finishes and weighted_flow_time(case, best.schedule) < weighted_flow_time(case, carried.schedule) * (
            1 - SOONER_EPSILON
        )
        return None if better or sooner else carried


@dataclass(frozen=True, slots=True)
class PartPlan:
    """What one group adds to the whole plan."""

    placements: tuple[Placement, ...]
    deferrals: tuple[Deferral, ...]
    warnings: tuple[str, ...]
    value: float
    solved: PartPrices | None


@contextmanager
def _garbage_collected() -> Iterator[None]:
    """Let what a part leaves behind go with it: the states of its pools know each other, so only a collection does it.

    One by itself would come seldom where there are so many jobs, and look at them all.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if enabled:
            gc.enable()


def _plan_part(options: PlannerOptions, parts: Parts, part: Snapshot, incumbent: Plan | None) -> PartPlan:
    case = make_case(part, firm_deadlines=options.firm_deadlines)
    warnings: list[str] = []
    choice = Planner(options).choose(case, incumbent, warnings)
    schedule = choice.candidate.schedule
    waiting = deferrals(case, schedule.placements, schedule.gate_passes, choice.prices)
    solved = _part_prices(parts, case, choice.solved)
    return PartPlan(schedule.placements, waiting, tuple(warnings), choice.candidate.score.value, solved)


def _part_prices(parts: Parts, case: Case, optimum: tuple[Grid, Solution] | None) -> PartPrices | None:
    """Return what the others need to know of one group's linear programme."""
    if optimum is None:
        return None
    grid, solution = optimum
    kinds = [parts.kinds[kind_of(case.capacities[market.pools[0]].pool)] for market in grid.markets]
    return PartPrices(grid, kinds, solution.prices[: len(grid.limits)].copy())


def plan_week(snapshot: Snapshot, incumbent: Plan | None = None) -> Plan:
    """Return the plan from ``snapshot.now`` to the horizon.

    ``incumbent`` is the plan in force, which is carried on where nothing clearly better is found. A plan that the
    verifier refuses never leaves: the plain dispatcher's takes its place, or what of it the verifier accepts, and a
    warning says so. Without a solver the plan has no bound and a warning.
    """
    return Planner().plan(snapshot, incumbent)


def _as_plan(case: Case, choice: PlanChoice) -> Plan:
    schedule = choice.candidate.schedule
    placements = in_queue_order(case, schedule.placements)
    return Plan(
        made_at=case.now,
        placements=placements,
        deferrals=deferrals(case, placements, schedule.gate_passes, choice.prices),
        value=value(case.snapshot, placements),
        bound=choice.bound,
        made_by=choice.made_by,
        kept=expected(case.snapshot),
    )


def _fall_back(case: Case, refused: Plan, passes: Mapping[int, int], violations: list[str]) -> Plan:
    """Return what the verifier accepts of a refused plan, and what the dispatcher adds to it if that is accepted."""
    warning = f"the verifier refused the plan made by {refused.made_by}: {violations[0]}"
    legal = _accepted(case.snapshot, replace(refused, placements=()), refused.placements).placements
    still = {planned_lane.job for placed in legal for planned_lane in placed.lanes}
    gate_passes = {child: at for child, at in passes.items() if case.jobs[child].view.name in still}
    schedule = fill_gaps(case, Schedule(legal, gate_passes))
    if verify(case.snapshot, replace(refused, placements=schedule.placements)):
        schedule = Schedule(legal, gate_passes)
    return Plan(
        made_at=case.now,
        placements=schedule.placements,
        deferrals=deferrals(case, schedule.placements, schedule.gate_passes),
        value=value(case.snapshot, schedule.placements),
        bound=refused.bound,
        made_by="fallback",
        warnings=(*refused.warnings, warning),
    )


def _accepted(snapshot: Snapshot, plan: Plan, more: tuple[Placement, ...]) -> Plan:
    """Return ``kept`` with as much of ``more`` as the verifier accepts, in order of time; halving finds the rest.

    What a session needs comes before it, so that a plan is as legal without its later part as it was with it.
    """
    longer = replace(plan, placements=(*plan.placements, *more))
    if not more or not verify(snapshot, longer):
        return longer
    if len(more) == 1:
        return plan
    middle = len(more) // 2
    return _accepted(snapshot, _accepted(snapshot, plan, more[:middle]), more[middle:])
