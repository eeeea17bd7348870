"""Candidates: the first plans, and which of them is chosen.

Plain orders are candidates like those that prices and targets make: none that meets as many deadlines is worth more
than what is chosen. Among few jobs deadlines come first, whatever they cost. Among more they are weighed, for the light
jobs of a crowd would hold up all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scheduler.planner.dispatch.dispatcher import fill_gaps, make_full_schedule, make_schedule
from scheduler.planner.dispatch.orders import LASTING, ORDERS, in_order
from scheduler.planner.dispatch.walk import Walk, answers_alike
from scheduler.planner.lp.prices import Prices
from scheduler.planner.model.case import Case
from scheduler.planner.model.policy import PLAIN, Policy, Schedule
from scheduler.planner.search.deadlines import FIRM_JOBS_MAX
from scheduler.planner.search.score import PlanScore, finishes_all, score, weighted_flow_time

if TYPE_CHECKING:
    from scheduler.planner.dispatch.walk import Question

# (price factor, patience), most promising first. Above SMALL (jobs x classes) only some, with targets and without.
FIRST_BIDS = ((0.85, 0.8), (0.9, 0.0), (0.8, 1.0), (0.85, 1.0), (0.9, 1.0), (0.95, 1.0))
BIDS_OF_MANY, AIMED_BIDS_OF_MANY = ((0.9, 1.0), (0.95, 1.0)), ((0.85, 0.8), (0.95, 1.0))
SMALL = 800
# All deadlines together may cost this part of the most value, where jobs are more than FIRM_JOBS_MAX: it is about what
# it costs to meet as many as earliest deadline first does.
DEADLINES_COST = 0.3
# Where all work is done within the horizon, a plan may be worth so much less if the jobs are done sooner by it. Value
# tells which work deserves hours, not when a job is done: a job of an hour adds nearly nothing to a week's value.
SOONER_COST = 0.05


@dataclass(frozen=True, slots=True)
class Bids:
    """How strictly prices are honoured, by pool class, and how much of a job's worth elsewhere counts."""

    price_factors: tuple[float, ...]
    patience: float = 0.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule with the policy that made it and what it scores."""

    policy: Policy
    bids: Bids
    schedule: Schedule
    score: PlanScore


@dataclass(frozen=True, slots=True)
class Floor:
    """What a choice is held to where it can be: deadlines met by earliest deadline first, value of the best order."""

    on_time: int
    value: float


def first_choice(case: Case, prices: Prices, policies: Sequence[Policy]) -> Candidate:
    """Return the best of all first candidates; ``policies`` are those that deadlines make."""
    orders = simple_orders(case)
    candidates = [orders["density"], *priced_candidates(case, prices, policies)]
    best = choose(case, candidates)
    others = [
        one for one in orders.values() if one.score.on_time > best.score.on_time or one.score.value > best.score.value
    ]
    floor = Floor(
        orders["edf"].score.on_time if "edf" in orders else 0,
        max((one.score.value for one in others), default=best.score.value),
    )
    best = choose(case, [*candidates, *others], floor)
    return earliest_finish(case, best, candidates, list(orders.values()))


def earliest_finish(
    case: Case, best: Candidate, candidates: Sequence[Candidate], orders: Sequence[Candidate]
) -> Candidate:
    """Return ``best``, or where all work is done within the horizon, of those of nearly its value the soonest done.

    None that meets as many deadlines among the simple ``orders`` is worth more than what is chosen.
    """
    if not finishes_all(case, best.schedule):
        return best
    rivals = [one.score.value for one in orders if one.score.on_time >= best.score.on_time]
    least = max([best.score.value - SOONER_COST * abs(best.score.value), *rivals])
    candidates = [*candidates, *orders]
    good = [one for one in candidates if one.score.on_time >= best.score.on_time and one.score.value >= least]
    return min(good, key=lambda one: (weighted_flow_time(case, one.schedule), -one.score.value), default=best)


def simple_orders(case: Case) -> dict[str, Candidate]:
    """Return by name what simple orders make of ``case``; what no job's figures tell from another is left out."""
    views = [job.view for job in case.jobs]
    names = ["fifo", "srtf"]
    if any(view.deadline is not None for view in views):
        names.append("edf")
    if len({view.weight for view in views}) > 1:
        names += ["priority", "smith"]
    plain = _no_bids(case)
    candidates = {"density": attempt(case, PLAIN, plain, None)}
    alike: dict[tuple[int, ...], Candidate] = {}  # by the places of jobs in an order that work done does not change
    for name in names:
        policy, places = in_order(name), _places(case, name)
        same = alike.get(places)
        candidates[name] = attempt(case, policy, plain, None) if same is None else replace(same, policy=policy)
        if places:
            alike[places] = candidates[name]
    return candidates


def _places(case: Case, name: str) -> tuple[int, ...]:
    """Return the jobs as the order ``name`` has them, or nothing where that changes with what they have left."""
    if name not in LASTING:
        return ()
    rank = ORDERS[name]
    return tuple(sorted(range(len(case.jobs)), key=lambda job: (rank(case.jobs[job].view, 0), job)))


def priced_candidates(case: Case, prices: Prices, policies: Sequence[Policy]) -> list[Candidate]:
    """Return candidates that honour prices and targets more or less strictly, and those of ``policies`` alone."""
    small, plain = len(case.jobs) * len(case.classes) <= SMALL, _no_bids(case)
    bids, aimed_bids = (FIRST_BIDS, FIRST_BIDS) if small else (BIDS_OF_MANY, AIMED_BIDS_OF_MANY)
    candidates = [attempt(case, policy, plain, None) for policy in policies if policy.urgent]
    for policy in policies:
        candidates += _for_all(case, policy, bids, prices)
        if prices.targets:
            candidates += _for_all(case, replace(policy, phased=prices.targets), aimed_bids, prices)
    return candidates


def _for_all(case: Case, policy: Policy, bids: Sequence[tuple[float, float]], prices: Prices) -> list[Candidate]:
    """Return the candidate of each of ``bids``; who would be told the same at every turn need not walk."""
    candidates: list[Candidate] = []
    walks: list[tuple[Sequence[Question], Candidate]] = []
    for bid in bids:
        class_bids = _bids(case, bid)
        admits = prices.admits(class_bids.price_factors, class_bids.patience)
        same = next((one for questions, one in walks if answers_alike(admits, questions)), None)
        if same is None:
            walk = Walk(case, replace(policy, admits=admits))
            schedule = walk.run()
            if walk.leaves_room:
                schedule = fill_gaps(case, schedule, policy)
            same = Candidate(walk.policy, class_bids, schedule, score(case, schedule))
            walks.append((walk.questions, same))
        candidates.append(replace(same, policy=replace(policy, admits=admits), bids=class_bids))
    return candidates


def targeted_choice(case: Case, prices: Prices, policies: Sequence[Policy]) -> Candidate:
    """Return the best of one candidate for each of ``policies``: parts of very many jobs are planned by it."""
    bids = _bids(case, AIMED_BIDS_OF_MANY[0])
    return choose(case, [attempt(case, replace(one, phased=prices.targets), bids, prices) for one in policies])


def choose(case: Case, candidates: Sequence[Candidate], floor: Floor | None = None) -> Candidate:
    """Return the one that meets the most deadlines; of many jobs by what deadlines may cost.

    Those that are worth too little are left out. Of those that meet as many as the floor, if there are any, those go
    first that reach its value too. Of ten deadlines one may be given up for value.
    """
    if len(case.jobs) <= FIRM_JOBS_MAX:
        return max(candidates, key=_score)
    most = max(one.score.value for one in candidates)
    enough = [one for one in candidates if one.score.value >= most - DEADLINES_COST * abs(most)]
    if floor is not None and any(one.score.on_time >= floor.on_time for one in enough):
        enough = [one for one in enough if one.score.on_time >= floor.on_time]
        enough = [one for one in enough if one.score.value >= floor.value] or enough
    on_time = max(one.score.on_time for one in enough)
    return max((one for one in enough if one.score.on_time >= on_time - on_time // 10), key=_gain)


def attempt(case: Case, policy: Policy, bids: Bids, prices: Prices | None) -> Candidate:
    """Return what the dispatcher makes of ``policy`` when sessions must pay their prices as ``bids`` say."""
    if prices is not None and any(bids.price_factors):
        policy = replace(policy, admits=prices.admits(bids.price_factors, bids.patience))
    schedule = make_schedule(case, policy) if policy.admits is None else make_full_schedule(case, policy)
    return Candidate(policy, bids, schedule, score(case, schedule))


def _score(candidate: Candidate) -> PlanScore:
    return candidate.score


def _gain(candidate: Candidate) -> tuple[float, float]:
    return candidate.score.gain


def _bids(case: Case, bid: tuple[float, float]) -> Bids:
    return Bids((bid[0],) * len(case.classes), bid[1])


def _no_bids(case: Case) -> Bids:
    return Bids((0.0,) * len(case.classes))
