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
from scheduler.planner.dispatch.dispatcher import extend, fill
from scheduler.planner.model.policy import Schedule
from scheduler.planner.search.score import score, within

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scheduler.core.plan import Placement
    from scheduler.planner.lp.prices import Prices
    from scheduler.planner.model.case import Case
    from scheduler.planner.model.policy import Policy
    from scheduler.planner.search.score import Score

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
        self._policy = replace(policy, pinned={})
        self._rng = Random(1)
        self._index = {job.view.name: job.index for job in case.jobs}
        self._class_of = {capacity.pool.name: case.class_of[number] for number, capacity in enumerate(case.capacities)}
        self._usable = [
            [number for number, group in enumerate(case.classes) if group.offers[job.index] is not None]
            for job in case.jobs
        ]
        self._worth = case.within if case.afterwards is None else case.afterwards.worth

    def losses(self, schedule: Schedule) -> list[tuple[float, int]]:
        """Return (value, job) of what sessions bring less than they cost, and of work left that is worth something."""
        case, prices = self._case, self._prices
        left = [job.view.remaining_steps - job.expected_steps for job in case.jobs]
        found = []
        for placement in schedule.placements:
            group = self._class_of[placement.pool]
            hours = prices.cost(group, placement.start, min(placement.end, case.until))
            hours *= prices.share(group, placement.devices)
            for planned_lane, brings in zip(placement.lanes, self._worth.lanes(placement), strict=True):
                job = self._index[planned_lane.job]
                left[job] -= planned_lane.steps
                found.append((hours / len(placement.lanes) + prices.work[job] * planned_lane.steps - brings, job))
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
            for planned_lane in placement.lanes:
                taken[self._index[planned_lane.job]] = placement.start if rng.random() < 0.6 else case.now
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
        planned_lane = self._rng.choice(self._rng.choice(schedule.placements).lanes)
        return self._index[planned_lane.job]

    def _near(self, schedule: Schedule, lead: int, begin: int, reach: int) -> list[Placement]:
        """Return the sessions of others that ``lead`` could have instead of them, about that time."""
        return [
            placement
            for placement in schedule.placements
            if begin - DAY // 2 <= placement.start < begin + reach
            and self._class_of[placement.pool] in self._usable[lead]
            and all(self._index[planned_lane.job] != lead for planned_lane in placement.lanes)
        ]


def without(case: Case, schedule: Schedule, taken: Mapping[int, int]) -> Schedule:
    """Return ``schedule`` less the sessions of ``taken`` jobs from an instant on, and all that depends on them.

    Who shares such a session loses it as well, and all that follows; so does, from the beginning, a child whose gate no
    longer passes.
    """
    index = {job.view.name: job.index for job in case.jobs}
    cuts, kept = dict(taken), list(schedule.placements)
    passes = dict(schedule.gate_passes)
    while True:
        kept, shared = _before(kept, cuts, index)
        if shared:
            continue
        done = [job.view.done_step + job.expected_steps for job in case.jobs]
        for placement in kept:
            for planned_lane in placement.lanes:
                done[index[planned_lane.job]] += planned_lane.steps
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


def _before(
    placements: Sequence[Placement], cuts: dict[int, int], index: Mapping[str, int]
) -> tuple[list[Placement], bool]:
    """Return the sessions before the cuts of all in them, and whether they cut somebody else's; ``cuts`` has those."""
    kept, shared = [], False
    for placement in placements:
        jobs = [index[planned_lane.job] for planned_lane in placement.lanes]
        if all(placement.start < cuts.get(job, placement.start + 1) for job in jobs):
            kept.append(placement)
            continue
        for job in jobs:
            # What the partner does later counts on what it would have done here, and so does the gate of its children.
            if placement.start < cuts.get(job, placement.start + 1):
                cuts[job], shared = placement.start, True
    return kept, shared
