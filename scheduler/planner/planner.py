"""Planner: the entry point of the daemon. Each layer works without those after it; every plan is verified.

dispatch -> deadlines -> prices by linear programme -> local search -> previous plan kept unless clearly worse -> verify
"""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from scheduler.core.plan import Deferral, Placement, Plan
from scheduler.core.snapshot import Snapshot
from scheduler.planner.dispatch.dispatcher import fill_gaps, in_queue_order, pinned_sessions
from scheduler.planner.dispatch.waiting import deferrals
from scheduler.planner.lp.grid import Grid, make_grid
from scheduler.planner.lp.job_matrix import kind_of
from scheduler.planner.lp.prices import Prices, dual_prices, scarcity_prices, targets
from scheduler.planner.lp.scale import PartPrices, Parts, bound_of, deferrals_outside, split_by_prices, split_snapshot
from scheduler.planner.lp.solver import LinearSolver, Solution, Solver, SolverFailed
from scheduler.planner.model.case import Case, make_case
from scheduler.planner.model.forecast import expected
from scheduler.planner.model.policy import PLAIN, PlanPolicy, Schedule
from scheduler.planner.model.value import value
from scheduler.planner.search.candidates import Candidate, attempt, first_choice, take_turns, targeted_choice
from scheduler.planner.search.conserve import conserve
from scheduler.planner.search.deadlines import deadline_policies, drop_needless_urgency
from scheduler.planner.search.rebuild import improve, steps_for
from scheduler.planner.search.score import finishes_all, score, weighted_flow_time
from scheduler.planner.verify import verify

# A new plan replaces the previous one if it meets more deadlines or its value is higher by this part.
EPSILON = 0.01
# The same after a search, whose results vary by chance by about this part.
SEARCHED_EPSILON = 0.02
# A new plan also replaces the previous one if its weighted flow time is lower by this part: a short new job adds almost
# nothing to the value of a week.
SOONER_EPSILON = 0.005
# With more jobs than this the plan is made in parts.
WHOLE_JOBS_MAX = 1_500


@dataclass(frozen=True, slots=True)
class PlannerOptions:
    """Which layers run; for benchmarks, tests and installations without a solver."""

    firm_deadlines: bool = True
    linear: bool = True
    search_steps: int | None = None  # None: by the size of the case
    time_limit_seconds: float = 120.0  # for a solver that hangs; its work is bounded by its steps
    few_candidates: bool = False  # one candidate per deadline policy, for plans in parts
    solver: Callable[[float], LinearSolver] = Solver  # makes a solver from its time limit


ALL_LAYERS = PlannerOptions()


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """The result of all layers for one case."""

    candidate: Candidate
    prices: Prices
    bound: float | None
    made_by: str
    solved: tuple[Grid, Solution] | None


class Planner:
    """Makes plans; between two plans it keeps only the solver's last basis."""

    def __init__(self, options: PlannerOptions = ALL_LAYERS) -> None:
        self._options = options
        self._solver: LinearSolver | None = None

    def plan(self, snapshot: Snapshot, incumbent: Plan | None = None) -> Plan:
        """Return the plan from ``snapshot.now`` to the horizon; see :func:`plan_week`."""
        return self.plan_and_policy(snapshot, incumbent)[0]

    def plan_and_policy(self, snapshot: Snapshot, incumbent: Plan | None) -> tuple[Plan, PlanPolicy]:
        """Return the plan and the policy that made it (PLAIN for a plan in parts)."""
        if len(snapshot.jobs) > WHOLE_JOBS_MAX:
            return self._plan_in_parts(snapshot, incumbent), PLAIN
        warnings: list[str] = []
        with without_collections():
            case = make_case(snapshot, firm_deadlines=self._options.firm_deadlines)
            choice = self.choose(case, incumbent, warnings)
        plan = _as_plan(case, choice)
        plan = replace(plan, warnings=tuple(warnings))
        violations = verify(snapshot, plan)
        if violations:
            plan = _fall_back(case, plan, choice.candidate.schedule.gate_passes, violations)
        return plan, choice.candidate.policy

    def quick_schedule(self, snapshot: Snapshot, policy: PlanPolicy) -> Schedule:
        """Return the schedule of one candidate with the urgent jobs of ``policy``, much faster than a plan."""
        case = make_case(snapshot, firm_deadlines=self._options.firm_deadlines)
        plain = PlanPolicy(urgent=policy.urgent, foresight_seconds=policy.foresight_seconds)
        return targeted_choice(case, self.prices(case, [])[0], [plain]).schedule

    def choose(self, case: Case, incumbent: Plan | None, warnings: list[str]) -> PlanChoice:
        """Return the best schedule of all layers; append a warning if the solver failed."""
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
        """Return the prices, the bound, and the grid with its solution; without a solver rough prices and a warning."""
        from scheduler.planner.lp.linear import build, plannable_jobs, unpriceable_jobs

        # All parts use the same spans, because their prices are compared.
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
        """Return the joined plans of all groups of pools, each with its core of jobs."""
        parts = split_snapshot(snapshot)
        options = replace(self._options, few_candidates=True)
        with without_collections():
            sample = make_case(parts.snapshots[0], firm_deadlines=options.firm_deadlines)
            sample_prices = _part_prices(parts, sample, Planner(options).prices(sample, [])[2])
            del sample
            gc.collect(0)
        if sample_prices is not None:
            parts = split_by_prices(snapshot, parts, sample_prices)
        plans = []
        for part in parts.snapshots:
            with without_collections():
                plans.append(_plan_part(options, parts, part, incumbent))
                gc.collect(0)
        placements = [placement for part in plans for placement in part.placements]
        waiting = [deferral for part in plans for deferral in part.deferrals]
        warnings = [warning for part in plans for warning in part.warnings]
        solved = [part.solved for part in plans if part.solved is not None]
        placements.sort(key=lambda placed: (placed.start, placed.pool, placed.lanes[0].job))
        plan = Plan(
            made_at=snapshot.now,
            placements=tuple(placements),
            deferrals=(*waiting, *deferrals_outside(snapshot, parts)),
            value=sum(part.value for part in plans),
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
        """Return the previous plan as a candidate; None if ``best`` is better by ``epsilon`` or finishes sooner."""
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
    """The plan of one group of pools."""

    placements: tuple[Placement, ...]
    deferrals: tuple[Deferral, ...]
    warnings: tuple[str, ...]
    value: float
    solved: PartPrices | None


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage in the block, because every collection would scan all jobs: a sixth of a plan's time.

    Capacity states form reference cycles, so a plan in parts collects garbage itself after each part.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
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
    """Return the prices of one group's linear programme, None if it has none."""
    if optimum is None:
        return None
    grid, solution = optimum
    kinds = [parts.kinds[kind_of(case.capacities[market.pools[0]].pool)] for market in grid.markets]
    return PartPrices(grid, kinds, solution.prices[: len(grid.limits)].copy())


def plan_week(snapshot: Snapshot, incumbent: Plan | None = None) -> Plan:
    """Return the plan from ``snapshot.now`` to the horizon.

    ``incumbent`` is the current plan; it is kept unless a clearly better one is found. If the verifier refuses a plan,
    the result is the part that it accepts, extended by the dispatcher, with a warning. Without a solver the plan has a
    warning and no bound.
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
    """Return the accepted part of a refused plan, extended by the dispatcher if the verifier accepts the extension."""
    warning = f"the verifier refused the plan made by {refused.made_by}: {violations[0]}"
    legal = _accepted(case.snapshot, replace(refused, placements=()), refused.placements).placements
    planned = {lane.job for placed in legal for lane in placed.lanes}
    gate_passes = {child: at for child, at in passes.items() if case.jobs[child].view.name in planned}
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
    """Return ``plan`` with the sessions of ``more`` that the verifier accepts; bisection finds those it refuses.

    A session depends on earlier sessions only, so a plan stays valid without its later part.
    """
    longer = replace(plan, placements=(*plan.placements, *more))
    if not more or not verify(snapshot, longer):
        return longer
    if len(more) == 1:
        return plan
    middle = len(more) // 2
    return _accepted(snapshot, _accepted(snapshot, plan, more[:middle]), more[middle:])
