"""Rebuild: a seeded large neighbourhood search. Each step removes a few jobs from the plan and inserts them again.

Prices show where a plan loses against the bound: in sessions worth less than their hours and steps, and in work that is
not planned. Steps start there. The rest of the plan is not moved, so that a step costs less than half of a new plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from random import Random

from jobs.nouns.window import DAY, WEEK
from scheduler.planner.dispatch.dispatcher import fill_gaps, make_full_schedule
from scheduler.planner.lp.prices import Prices
from scheduler.planner.model.booking import Booking
from scheduler.planner.model.case import Case
from scheduler.planner.model.plan_state import as_schedule, plan_state
from scheduler.planner.model.policy import PlanPolicy, Schedule
from scheduler.planner.search.candidates import Candidate
from scheduler.planner.search.score import PlanScore, score

# Choices of a step: other jobs to remove, the distance of their sessions, price factors, patience.
OTHERS = (1, 1, 2, 2, 3, 4)
REACHES = (DAY // 2, DAY, 2 * DAY, 7 * DAY)
PRICE_FACTORS = (0.9, 1.0)
PATIENCES = (0.6, 0.8, 1.0)
# Shares of the steps that start with a random job, and that insert with prices.
AT_RANDOM = 0.23
PRICED = 0.9
# Standard deviation of the logarithm of the random factor on a removed job's density.
DENSITY_SPREAD = 0.5


@dataclass(frozen=True, slots=True)
class ScoredSchedule:
    """A schedule and its score."""

    schedule: Schedule
    score: PlanScore


def rebuild(
    case: Case, start: ScoredSchedule, policy: PlanPolicy, prices: Prices, steps: int, tries: int = 1
) -> ScoredSchedule:
    """Return the best schedule that ``steps`` seeded steps from ``start`` find; ``policy`` made ``start``.

    Half of the steps are divided among ``tries`` walks with different seeds, because a walk may get stuck by chance.
    The best result is continued with the other half.
    """
    if tries == 1:
        return _best_of_walk(_RebuildWalk(case, policy, prices, 1), start, steps)
    each = steps // (2 * tries)
    results = [_best_of_walk(_RebuildWalk(case, policy, prices, seed), start, each) for seed in range(1, tries + 1)]
    best = max(results, key=lambda result: result.score)
    return _best_of_walk(_RebuildWalk(case, policy, prices, tries + 1), best, steps - tries * each)


def _best_of_walk(walk: "_RebuildWalk", start: ScoredSchedule, steps: int) -> ScoredSchedule:
    """Return the best schedule of ``steps`` steps of one walk.

    The walk also continues from schedules of equal value, to cross plateaus.
    """
    case, best, losses = walk.case, start, walk.losses(start.schedule)
    current = best
    for _ in range(steps):
        if not current.schedule.placements:
            break
        schedule = walk.step(current.schedule, losses)
        result = ScoredSchedule(schedule, score(case, schedule))
        if result.score.on_time < best.score.on_time or result.score.value < best.score.value:
            continue
        if result.score.value != current.score.value:
            losses = walk.losses(schedule)
        current = result
        if current.score.gain >= best.score.gain:
            best = current
    return best


class _RebuildWalk:
    """The random steps of one walk over schedules."""

    def __init__(self, case: Case, policy: PlanPolicy, prices: Prices, seed: int) -> None:
        self.case, self._prices = case, prices
        # Factors and pins of the whole plan do not apply to a few removed jobs.
        self._policy = replace(policy, pinned={}, factors={}, phased={})
        self._rng = Random(seed)
        self._class_of = case.class_of
        self._usable = [
            [number for number, group in enumerate(case.classes) if group.offers[job.index] is not None]
            for job in case.jobs
        ]
        self._losses: Sequence[tuple[float, int]] = ()
        self._total = 0.0

    def losses(self, schedule: Schedule) -> list[tuple[float, int]]:
        """Return (loss, job) of sessions worth less than their price, and of steps that are not planned."""
        case, prices = self.case, self._prices
        state = plan_state(case, schedule)
        remaining = state.remaining
        losses = []
        for booking in state.bookings:
            group = self._class_of[booking.pool]
            hours = prices.cost(group, booking.start, min(booking.end, case.until))
            hours *= prices.share(group, booking.placement.devices)
            for (job, _, steps), brings in zip(booking.lanes, case.within.lanes(booking), strict=True):
                losses.append((hours / len(booking.lanes) + prices.work[job] * steps - brings, job))
        losses += [(prices.work[job] * steps, job) for job, steps in enumerate(remaining) if case.jobs[job].startable]
        return [(loss, job) for loss, job in losses if loss > 0]

    def step(self, schedule: Schedule, losses: Sequence[tuple[float, int]]) -> Schedule:
        """Return ``schedule`` with a few jobs removed from an instant on and inserted again in a random order."""
        case, rng = self.case, self._rng
        bookings = plan_state(case, schedule).bookings
        lead = self._lead(bookings, losses)
        begin = case.now + (int(rng.random() ** 2 * (case.until - case.now)) if rng.random() < 0.7 else 0)
        near = self._near(bookings, lead, begin, rng.choice(REACHES))
        cuts = {lead: begin if rng.random() < 0.5 else case.now}
        for booking in rng.sample(near, min(rng.choice(OTHERS), len(near))):
            for job, _, _ in booking.lanes:
                cuts[job] = booking.start if rng.random() < 0.6 else case.now
        rest = without_jobs(case, schedule, cuts)
        factors: dict[tuple[int, int], float] = {}
        for job in sorted(cuts):
            factor = exp(rng.gauss(0.0, DENSITY_SPREAD)) * (4.0 if job == lead else 1.0)
            for group in self._usable[job]:
                factors[group, job] = factor * exp(rng.gauss(0.0, 0.4))
        policy = replace(self._policy, factors=factors)
        if rng.random() < PRICED:
            price_factors = (rng.choice(PRICE_FACTORS),) * len(case.classes)
            return make_full_schedule(
                case, replace(policy, admits=self._prices.admits(price_factors, rng.choice(PATIENCES))), rest
            )
        return fill_gaps(case, rest, policy)

    def _lead(self, bookings: Sequence[Booking], losses: Sequence[tuple[float, int]]) -> int:
        """Return a job at random in proportion to its loss, sometimes any job."""
        if losses is not self._losses:
            self._losses, self._total = losses, sum(loss for loss, _ in losses)
        total = self._total
        if total > 0 and self._rng.random() >= AT_RANDOM:
            mark = self._rng.random() * total
            for loss, job in losses:
                mark -= loss
                if mark <= 0:
                    return job
        job, _, _ = self._rng.choice(self._rng.choice(bookings).lanes)
        return job

    def _near(self, bookings: Sequence[Booking], lead: int, begin: int, reach: int) -> list[Booking]:
        """Return the sessions of other jobs within ``reach`` of ``begin`` that ``lead`` could use."""
        first, last, usable, class_of = begin - DAY // 2, begin + reach, self._usable[lead], self._class_of
        return [
            booking
            for booking in bookings
            if first <= booking.start < last and class_of[booking.pool] in usable and lead not in booking.jobs
        ]


def without_jobs(case: Case, schedule: Schedule, cuts_by_job: Mapping[int, int]) -> Schedule:
    """Return ``schedule`` without the sessions of the jobs in ``cuts_by_job`` from an instant on, and their dependents.

    A job that shares such a session loses it and all its later ones. A child whose gate no longer passes loses all.
    """
    state, columns = plan_state(case, schedule), case.columns
    remaining, passes = state.remaining.copy(), dict(schedule.gate_passes)
    removed: set[Booking] = set()
    cuts = list(cuts_by_job.items())
    while cuts:
        while cuts:
            job, cut = cuts.pop()
            for booking in state.by_job.get(job, ()):
                if booking.start >= cut and booking not in removed:
                    removed.add(booking)
                    for other, _, steps in booking.lanes:
                        remaining[other] += steps
                        # The partner's later sessions depend on the steps of this one.
                        if other != job:
                            cuts.append((other, booking.start))
        for parent, children in case.children.items():
            step = columns.whole[parent] - remaining[parent]
            for child in children:
                if child in passes and step < case.jobs[child].gate_step:
                    del passes[child]
                    cuts.append((child, case.now))
    return as_schedule(state.without_booked(case, removed), passes)


# Search effort: the number of local search steps for a case.
#
# It follows from the size of the case, never from a clock, so that the same input gives the same plan.
STEPS_MAX = 400
SEARCHED_JOBS_MAX = 300
# Rebuilds of the schedule per step. A plan of few jobs converges early.
REBUILDS, REBUILDS_OF_FEW = 9.0, 0.9
TRIES = 3
FEW_JOBS = 20
# A limit of jobs x classes x steps; about three seconds.
EFFORT = 120_000


def steps_for(case: Case) -> int:
    """Return the number of search steps for ``case``; 0 with very many jobs, where a step gains next to nothing."""
    if len(case.jobs) > SEARCHED_JOBS_MAX:
        return 0
    longest = STEPS_MAX * 2 * WEEK // max(2 * WEEK, case.snapshot.horizon_seconds)  # a step costs a whole walk
    return min(longest, EFFORT // max(1, len(case.jobs) * len(case.classes)))


def improve(case: Case, start: Candidate, prices: Prices, steps: int) -> Candidate:
    """Return the best candidate that ``steps`` seeded steps from ``start`` find."""
    if len(case.jobs) < 2 or steps <= 0:
        return start
    few = len(case.jobs) <= FEW_JOBS
    rebuilds, tries = (int(steps * REBUILDS_OF_FEW), 1) if few else (int(steps * REBUILDS), TRIES)
    best = rebuild(case, ScoredSchedule(start.schedule, start.score), start.policy, prices, rebuilds, tries)
    return replace(start, schedule=best.schedule, score=best.score)
