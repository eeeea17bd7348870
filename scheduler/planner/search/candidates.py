"""Candidates: the first plans, and which of them is chosen. No choice is worth less than what a simple order makes.

Plain orders are candidates like those that prices and targets make. Where deadlines cost more value than the best order
leaves, some are given up, those first whose hours others would pay most for, but never more than earliest deadline
first would miss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scheduler.planner.dispatch.dispatcher import fill, filled, place
from scheduler.planner.dispatch.orders import LASTING, ORDERS, in_order
from scheduler.planner.dispatch.walk import Walk, answers_alike
from scheduler.planner.model.policy import PLAIN, Policy, Schedule
from scheduler.planner.search.score import Score, score, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.planner.dispatch.walk import Question
    from scheduler.planner.lp.prices import Prices
    from scheduler.planner.model.case import Case

# (price factor, patience), most promising first. Above SMALL (jobs x classes) only some, with targets and without.
FIRST_BIDS = ((0.85, 0.8), (0.9, 0.0), (0.8, 1.0), (0.85, 1.0), (0.9, 1.0), (0.95, 1.0))
BIDS_OF_MANY, AIMED_BIDS_OF_MANY = ((0.9, 1.0), (0.95, 1.0)), ((0.85, 0.8), (0.95, 1.0))
SMALL = 800
# Of fewer deadlines none is given up.
DEADLINES_MIN = 10
HALVINGS = 5


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
    score: Score


@dataclass(frozen=True, slots=True)
class Floor:
    """What every choice is held to: deadlines met by earliest deadline first, value of the best simple order."""

    on_time: int = 0
    value: float = 0.0


def first_choice(case: Case, prices: Prices, policies: Sequence[Policy]) -> Candidate:
    """Return the best of all first candidates; ``policies`` are those that deadlines make.

    What work is worth after the horizon is told by prices, at which many jobs are alike, and orders know no prices:
    they are chosen only if they are worth more within the horizon as well.
    """
    orders = simple_orders(case)
    floor = Floor(orders["edf"].score.on_time if "edf" in orders else 0)
    candidates = [orders["density"], *priced_candidates(case, prices, policies)]
    if all(found.score.on_time < floor.on_time for found in candidates):
        candidates.append(orders["edf"])
    best = choose(candidates, floor)
    mine = within(case, best.schedule)
    better = [
        found
        for found in orders.values()
        if found.score.value > best.score.value and within(case, found.schedule) >= mine
    ]
    if not better:
        return best
    floor = replace(floor, value=max(found.score.value for found in better))
    more = _fewer_deadlines(case, best, prices, floor) if best.score.on_time >= DEADLINES_MIN else []
    return choose([*candidates, *better, *more], floor)


def simple_orders(case: Case) -> dict[str, Candidate]:
    """Return by name what simple orders make of ``case``; what no job's figures tell from another is left out."""
    views = [job.view for job in case.jobs]
    names = ["fifo", "srtf"]
    if any(view.deadline is not None for view in views):
        names.append("edf")
    if len({view.weight for view in views}) > 1:
        names += ["priority", "smith"]
    plain = _no_bids(case)
    found = {"density": attempt(case, PLAIN, plain, None)}
    alike: dict[tuple[int, ...], Candidate] = {}  # by the places of jobs in an order that work done does not change
    for name in names:
        policy, places = in_order(name), _places(case, name)
        same = alike.get(places)
        found[name] = attempt(case, policy, plain, None) if same is None else replace(same, policy=policy)
        if places:
            alike[places] = found[name]
    return found


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
    found = [attempt(case, policy, plain, None) for policy in policies if policy.urgent]
    for policy in policies:
        found += _for_all(case, policy, bids, prices)
        if prices.targets:
            found += _for_all(case, replace(policy, phased=prices.targets), aimed_bids, prices)
    return found


def _for_all(case: Case, policy: Policy, bids: Sequence[tuple[float, float]], prices: Prices) -> list[Candidate]:
    """Return the candidate of each of ``bids``; who would be told the same at every turn need not walk."""
    found: list[Candidate] = []
    walks: list[tuple[Sequence[Question], Candidate]] = []
    for bid in bids:
        asked = _bids(case, bid)
        admits = prices.admits(asked.price_factors, asked.patience)
        same = next((one for questions, one in walks if answers_alike(admits, questions)), None)
        if same is None:
            walk = Walk(case, replace(policy, admits=admits))
            schedule = walk.run()
            if walk.leaves_room:
                schedule = fill(case, schedule, policy)
            same = Candidate(walk.policy, asked, schedule, score(case, schedule))
            walks.append((walk.questions, same))
        found.append(replace(same, policy=replace(policy, admits=admits), bids=asked))
    return found


def aimed_choice(case: Case, prices: Prices, policies: Sequence[Policy]) -> Candidate:
    """Return the best of one candidate for each of ``policies``: parts of very many jobs are planned by it."""
    bids = _bids(case, AIMED_BIDS_OF_MANY[0])
    return choose([attempt(case, replace(one, phased=prices.targets), bids, prices) for one in policies], Floor())


def choose(candidates: Sequence[Candidate], floor: Floor) -> Candidate:
    """Return the most valuable of those that meet nearly the most deadlines and are not below ``floor``.

    Of ten deadlines one may be given up for value, of fewer none. Where nothing reaches the floor's value, deadlines
    come first.
    """
    enough = [found for found in candidates if found.score.on_time >= floor.on_time]
    if max(found.score.on_time for found in enough) >= DEADLINES_MIN:
        enough = [found for found in enough if found.score.value >= floor.value] or enough
    most = max(found.score.on_time for found in enough)
    return max((found for found in enough if found.score.on_time >= most - most // 10), key=_gain)


def attempt(case: Case, policy: Policy, bids: Bids, prices: Prices | None) -> Candidate:
    """Return what the dispatcher makes of ``policy`` when sessions must pay their prices as ``bids`` say."""
    if prices is not None and any(bids.price_factors):
        policy = replace(policy, admits=prices.admits(bids.price_factors, bids.patience))
    schedule = place(case, policy) if policy.admits is None else filled(case, policy)
    return Candidate(policy, bids, schedule, score(case, schedule))


def _fewer_deadlines(case: Case, start: Candidate, prices: Prices, floor: Floor) -> list[Candidate]:
    """Return candidates with fewer urgent jobs, by halving: just so few that their value reaches the floor's."""
    policy = replace(start.policy, admits=None)
    dearest = sorted(policy.urgent, key=lambda job: (-_loss(case, prices, job), job))
    kept, given_up = 0, len(dearest)
    found = []
    for _ in range(HALVINGS):
        middle = (kept + given_up) // 2
        one = attempt(case, replace(policy, urgent=frozenset(dearest[middle:])), start.bids, prices)
        found.append(one)
        if one.score.value >= floor.value:
            given_up = middle
        elif one.score.on_time <= floor.on_time:
            break  # who gives up more meets too few, and here it is not enough
        else:
            kept = middle
    return found


def _loss(case: Case, prices: Prices, job: int) -> float:
    """Return what others would pay for the hours of ``job`` beyond what it brings in time, where that is least."""
    view = case.jobs[job].view
    remaining = view.remaining_steps - case.jobs[job].expected_steps
    losses = []
    for number, group in enumerate(case.classes):
        offer = group.offers[job]
        if offer is not None and remaining > 0:
            end = case.jobs[job].deadline or case.until
            start = max(case.now, end - offer.time_for(remaining))
            hours = prices.cost(number, start, end) * prices.share(number, len(offer.speeds))
            losses.append(hours - offer.worth * remaining)
    return min(losses, default=0.0)


def _gain(found: Candidate) -> tuple[float, float]:
    return found.score.gain


def _bids(case: Case, bid: tuple[float, float]) -> Bids:
    return Bids((bid[0],) * len(case.classes), bid[1])


def _no_bids(case: Case) -> Bids:
    return Bids((0.0,) * len(case.classes))
