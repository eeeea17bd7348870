"""Candidates: the first plans, and the choice of the best one.

Simple orders are candidates too, so no simple order beats the chosen plan in value with as many deadlines met. With few
jobs deadlines come first at any cost. With more jobs their cost is limited, because many jobs of low priority with
deadlines would delay all others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler.core.plan import Plan
from scheduler.planner.dispatch.dispatcher import fill_gaps, make_full_schedule, make_schedule, pinned_sessions
from scheduler.planner.dispatch.orders import LASTING, ORDERS, in_order
from scheduler.planner.dispatch.walk import Question, Walk, answers_alike
from scheduler.planner.lp.prices import Prices
from scheduler.planner.model.case import Case
from scheduler.planner.model.policy import PLAIN, PlanPolicy, Schedule
from scheduler.planner.search.deadlines import FIRM_JOBS_MAX
from scheduler.planner.search.score import PlanScore, finishes_all, score, weighted_flow_time

# (price factor, patience), most promising first. Cases that are not small use the shorter lists.
FIRST_BIDS = ((0.85, 0.8), (0.9, 0.0), (0.8, 1.0), (0.85, 1.0), (0.9, 1.0), (0.95, 1.0))
BIDS_OF_MANY, AIMED_BIDS_OF_MANY = ((0.9, 1.0), (0.95, 1.0)), ((0.85, 0.8), (0.95, 1.0))
# With more than FIRM_JOBS_MAX jobs, deadlines may cost this part of the highest value: about what it costs to meet as
# many as earliest deadline first does.
DEADLINES_COST = 0.3
# If all work fits into the horizon, a plan may lose this part of the value to finish jobs sooner. Value hardly measures
# when a job is done: one hour adds almost nothing to the value of a week.
SOONER_COST = 0.05


@dataclass(frozen=True, slots=True)
class Bids:
    """The factor of the prices by pool class, and the factor of a job's value elsewhere (``patience``)."""

    price_factors: tuple[float, ...]
    patience: float = 0.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule with its policy, bids and score."""

    policy: PlanPolicy
    bids: Bids
    schedule: Schedule
    score: PlanScore


@dataclass(frozen=True, slots=True)
class Floor:
    """Lower limits of a choice, if a candidate reaches them: deadlines met by EDF, value of the best simple order."""

    on_time: int
    value: float


def first_choice(case: Case, prices: Prices, policies: Sequence[PlanPolicy]) -> Candidate:
    """Return the best of all first candidates; ``policies`` are the deadline policies.

    Where a walk is expensive, bids are tried only with policies whose own candidates could be chosen.
    """
    orders = simple_orders(case)
    own = [attempt(case, policy, _no_bids(case), None) for policy in policies if policy.urgent]
    candidates = [orders["density"], *own]
    if not case.small:
        good = [candidate.policy for candidate in _good_enough(candidates)]
        policies = [policy for policy in policies if policy in good] or policies
    candidates += priced_candidates(case, prices, policies)
    first = choose(case, candidates).score
    others = [each for each in orders.values() if each.score.on_time > first.on_time or each.score.value > first.value]
    value = max((other.score.value for other in others), default=first.value)
    floor = Floor(orders["edf"].score.on_time if "edf" in orders else 0, value)
    best = choose(case, [*candidates, *others], floor)
    return earliest_finish(case, best, candidates, list(orders.values()))


def earliest_finish(
    case: Case, best: Candidate, candidates: Sequence[Candidate], orders: Sequence[Candidate]
) -> Candidate:
    """Return ``best``; or, if it finishes all work, the candidate of nearly its value with the lowest flow time.

    The chosen candidate is worth at least as much as each simple order that meets as many deadlines.
    """
    if not finishes_all(case, best.schedule):
        return best
    rivals = [order.score.value for order in orders if order.score.on_time >= best.score.on_time]
    least = max([best.score.value - SOONER_COST * abs(best.score.value), *rivals])
    candidates = [*candidates, *orders]
    good = [each for each in candidates if each.score.on_time >= best.score.on_time and each.score.value >= least]
    return min(good, key=lambda each: (weighted_flow_time(case, each.schedule), -each.score.value), default=best)


def simple_orders(case: Case) -> dict[str, Candidate]:
    """Return the candidates of simple orders by name; orders that cannot differ for this case are left out."""
    views = [job.view for job in case.jobs]
    names = ["fifo", "srtf"]
    if any(view.deadline is not None for view in views):
        names.append("edf")
    if len({view.weight for view in views}) > 1:
        names += ["priority", "smith"]
    plain = _no_bids(case)
    candidates = {"density": attempt(case, PLAIN, plain, None)}
    by_order: dict[tuple[int, ...], Candidate] = {}  # by the jobs in an order that does not change during a plan
    for name in names:
        policy, order = in_order(name), _job_order(case, name)
        same = by_order.get(order)
        candidates[name] = attempt(case, policy, plain, None) if same is None else replace(same, policy=policy)
        if order:
            by_order[order] = candidates[name]
    return candidates


def _job_order(case: Case, name: str) -> tuple[int, ...]:
    """Return the jobs in the order ``name``; empty for an order that depends on remaining steps."""
    if name not in LASTING:
        return ()
    rank = ORDERS[name]
    return tuple(sorted(range(len(case.jobs)), key=lambda job: (rank(case.jobs[job].view, 0), job)))


def priced_candidates(case: Case, prices: Prices, policies: Sequence[PlanPolicy]) -> list[Candidate]:
    """Return candidates of all bids, with and without targets."""
    bids, aimed_bids = (FIRST_BIDS, FIRST_BIDS) if case.small else (BIDS_OF_MANY, AIMED_BIDS_OF_MANY)
    candidates: list[Candidate] = []
    for policy in policies:
        candidates += _for_all(case, policy, bids, prices)
        if prices.targets:
            candidates += _for_all(case, replace(policy, phased=prices.targets), aimed_bids, prices)
    return candidates


def _for_all(case: Case, policy: PlanPolicy, bids: Sequence[tuple[float, float]], prices: Prices) -> list[Candidate]:
    """Return the candidate of each of ``bids``; a bid with the same admissions as an earlier one reuses its walk."""
    candidates: list[Candidate] = []
    walks: list[tuple[Sequence[Question], Candidate]] = []
    for bid in bids:
        class_bids = _bids(case, bid)
        admits = prices.admits(class_bids.price_factors, class_bids.patience)
        same = next((candidate for questions, candidate in walks if answers_alike(admits, questions)), None)
        if same is None:
            walk = Walk(case, replace(policy, admits=admits))
            schedule = walk.run()
            if walk.leaves_room:
                schedule = fill_gaps(case, schedule, policy)
            same = Candidate(walk.policy, class_bids, schedule, score(case, schedule))
            walks.append((walk.questions, same))
        candidates.append(replace(same, policy=replace(policy, admits=admits), bids=class_bids))
    return candidates


def targeted_choice(case: Case, prices: Prices, policies: Sequence[PlanPolicy]) -> Candidate:
    """Return the best of one candidate with targets per policy; used for plans in parts."""
    bids = _bids(case, AIMED_BIDS_OF_MANY[0])
    return choose(case, [attempt(case, replace(policy, phased=prices.targets), bids, prices) for policy in policies])


def choose(case: Case, candidates: Sequence[Candidate], floor: Floor | None = None) -> Candidate:
    """Return the candidate with the best score; with more than FIRM_JOBS_MAX jobs the cost of deadlines is limited.

    Then candidates that lose more than DEADLINES_COST are left out, and those that reach the ``floor`` are preferred.
    One of ten deadlines may be missed for value.
    """
    if len(case.jobs) <= FIRM_JOBS_MAX:
        return max(candidates, key=_score)
    return max(_good_enough(candidates, floor), key=_gain)


def _good_enough(candidates: Sequence[Candidate], floor: Floor | None = None) -> list[Candidate]:
    """Return the candidates of enough value that meet enough deadlines."""
    most = max(each.score.value for each in candidates)
    enough = [each for each in candidates if each.score.value >= most - DEADLINES_COST * abs(most)]
    if floor is not None and any(each.score.on_time >= floor.on_time for each in enough):
        enough = [each for each in enough if each.score.on_time >= floor.on_time]
        enough = [each for each in enough if each.score.value >= floor.value] or enough
    on_time = max(each.score.on_time for each in enough)
    return [each for each in enough if each.score.on_time >= on_time - on_time // 10]


def attempt(case: Case, policy: PlanPolicy, bids: Bids, prices: Prices | None) -> Candidate:
    """Return the candidate of ``policy`` with the admission rule of ``bids``."""
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


# Turns in a finished plan: jobs that share hours get its sessions by their shares.
#
# The search looks at value only. Afterwards each session, in order of time, goes to the job of its share group that has
# received least relative to its share, and hours that become free are filled.
def take_turns(case: Case, candidate: Candidate) -> Candidate:
    """Return ``candidate`` with the sessions of share groups in turns; itself if there are no such groups."""
    if not case.turns:
        return candidate
    pins = pinned_sessions(case, Plan(case.now, candidate.schedule.placements, ()))
    schedule = make_schedule(case, replace(candidate.policy, admits=None, pinned=pins))
    return replace(candidate, schedule=schedule, score=score(case, schedule))
