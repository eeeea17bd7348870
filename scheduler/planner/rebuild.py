"""Rebuild: a seeded walk over schedules. A few jobs are taken out of a plan and put back in another order.

Prices tell where a plan loses against the bound: in sessions that bring less than their hours and their work are worth,
and in work that is left undone. The walk starts there. The rest of the plan stays where it is, so that a step changes
little and costs less than half of planning again. The number of steps is fixed: the same input gives the same plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp
from random import Random
from typing import TYPE_CHECKING

from scheduler.core.window import DAY
from scheduler.planner.dispatch import extend, fill
from scheduler.planner.policy import Schedule
from scheduler.planner.score import score, within
from scheduler.planner.value import Discount, seat_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scheduler.core.plan import Placement
    from scheduler.planner.case import Case
    from scheduler.planner.policy import Policy
    from scheduler.planner.prices import Prices
    from scheduler.planner.score import Score

# How many other jobs are taken out, how far their sessions lie apart, and how strictly prices are honoured then.
OTHERS = (1, 1, 2, 2, 3, 4)
REACHES = (DAY // 2, DAY, 2 * DAY, 7 * DAY)
PRICE_FACTORS = (0.6, 0.8, 0.9, 1.0)
PATIENCES = (0.0, 0.0, 0.8, 1.0)
# Shares of the steps that begin with a job that loses nothing, and that put jobs back against prices first.
AT_RANDOM = 0.23
PRICED = 0.6


@dataclass(frozen=True, slots=True)
class Found:
    """A schedule and what it scores."""

    schedule: Schedule
    score: Score


def rebuild(case: Case, start: Found, policy: Policy, prices: Prices, steps: int) -> Found:
    """Return the best schedule that ``steps`` seeded steps from ``start`` come across; ``policy`` made it."""
    walk = _Walk(case, policy, prices)
    best, losses = start, walk.losses(start.schedule)
    floor = within(case, start.schedule)
    for _ in range(steps):
        if not best.schedule.placements:
            break
        schedule = walk.step(best.schedule, losses)
        found = Found(schedule, score(case, schedule))
        if found.score.on_time < best.score.on_time or found.score.value < best.score.value:
            continue
        if case.afterwards is not None and within(case, schedule) < floor:
            continue  # the time after the horizon is not paid for with the horizon's own value
        if found.score.value > best.score.value:
            losses = walk.losses(schedule)
        best = found
    return best


class _Walk:
    """What every step needs."""

    def __init__(self, case: Case, policy: Policy, prices: Prices) -> None:
        self._case, self._prices = case, prices
        self._policy = replace(policy, agenda={})
        self._rng = Random(1)
        self._index = {job.view.name: job.index for job in case.jobs}
        self._class_of = {book.pool.name: case.class_of[number] for number, book in enumerate(case.books)}
        self._pools = {book.pool.name: book.pool for book in case.books}
        self._usable = [
            [number for number, group in enumerate(case.classes) if group.offers[job.index] is not None]
            for job in case.jobs
        ]
        snapshot = case.snapshot if case.afterwards is None else case.afterwards.snapshot
        self._discount = Discount(snapshot.now, snapshot.horizon_seconds)

    def losses(self, schedule: Schedule) -> list[tuple[float, int]]:
        """Return (value, job) of what sessions bring less than they cost, and of work left that is worth something."""
        case, prices = self._case, self._prices
        left = [job.view.remaining_steps - job.expected_steps for job in case.jobs]
        found = []
        for placement in schedule.placements:
            hours = prices.cost(self._class_of[placement.pool], placement.start, min(placement.end, case.until))
            for seat in placement.seats:
                job = self._index[seat.job]
                left[job] -= seat.steps
                pool, view = self._pools[placement.pool], case.jobs[job].view
                brings = seat_value(view, pool, placement, seat.devices, seat.steps, self._discount)
                found.append((hours / len(placement.seats) + prices.work[job] * seat.steps - brings, job))
        found += [(prices.work[job] * steps, job) for job, steps in enumerate(left) if case.jobs[job].startable]
        return [(lost, job) for lost, job in found if lost > 0]

    def step(self, schedule: Schedule, losses: Sequence[tuple[float, int]]) -> Schedule:
        """Return ``schedule`` with a few jobs put in again."""
        case, rng = self._case, self._rng
        lead = self._lead(schedule, losses)
        begin = case.now + (int(rng.random() ** 2 * (case.until - case.now)) if rng.random() < 0.7 else 0)
        near = self._near(schedule, lead, begin, rng.choice(REACHES))
        taken = {lead: begin if rng.random() < 0.5 else case.now}
        for placement in rng.sample(near, min(rng.choice(OTHERS), len(near))):
            for seat in placement.seats:
                taken[self._index[seat.job]] = placement.start if rng.random() < 0.6 else case.now
        rest = without(case, schedule, taken)
        factors = dict(self._policy.factors)
        for job in sorted(taken):
            factor = exp(rng.gauss(0.0, 1.2)) * (4.0 if job == lead else 1.0)
            for group in self._usable[job]:
                factors[group, job] = factor * exp(rng.gauss(0.0, 0.4))
        policy = replace(self._policy, factors=factors, phased={})
        if rng.random() < PRICED:
            asked = (rng.choice(PRICE_FACTORS),) * len(case.classes)
            rest = extend(case, rest, replace(policy, admits=self._prices.admits(asked, rng.choice(PATIENCES))))
        return fill(case, rest, policy)

    def _lead(self, schedule: Schedule, losses: Sequence[tuple[float, int]]) -> int:
        """Return a job that loses, likelier the more it does, or now and then any."""
        total = sum(lost for lost, _ in losses)
        if total > 0 and self._rng.random() >= AT_RANDOM:
            mark = self._rng.random() * total
            for lost, job in losses:
                mark -= lost
                if mark <= 0:
                    return job
        seat = self._rng.choice(self._rng.choice(schedule.placements).seats)
        return self._index[seat.job]

    def _near(self, schedule: Schedule, lead: int, begin: int, reach: int) -> list[Placement]:
        """Return the sessions of others that ``lead`` could have instead of them, about that time."""
        return [
            placement
            for placement in schedule.placements
            if begin - DAY // 2 <= placement.start < begin + reach
            and self._class_of[placement.pool] in self._usable[lead]
            and all(self._index[seat.job] != lead for seat in placement.seats)
        ]


def without(case: Case, schedule: Schedule, taken: Mapping[int, int]) -> Schedule:
    """Return ``schedule`` less the sessions of ``taken`` jobs from an instant on, and all that depends on them.

    Who shares such a session loses it as well; so does, from the beginning, a child whose gate no longer passes.
    """
    index = {job.view.name: job.index for job in case.jobs}
    cuts, kept = dict(taken), list(schedule.placements)
    passes = dict(schedule.gate_passes)
    while True:
        kept = [
            placement
            for placement in kept
            if all(placement.start < cuts.get(index[seat.job], case.until) for seat in placement.seats)
        ]
        done = [job.view.done_step + job.expected_steps for job in case.jobs]
        for placement in kept:
            for seat in placement.seats:
                done[index[seat.job]] += seat.steps
        shut = [
            child
            for parent, children in case.children.items()
            for child in children
            if child in passes and done[parent] < case.jobs[child].gate_step
        ]
        if not shut:
            return Schedule(tuple(kept), passes)
        for child in shut:
            del passes[child]
            cuts[child] = case.now
