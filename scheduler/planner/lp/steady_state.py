"""Steady state: which kinds of jobs deserve the hours of which pools if work goes on coming as it did.

A small linear programme over kinds, not jobs: hours a week of each kind on each class of pools, such that most weight a
week is finished. Kinds that are alike in where they are how much faster are one profile. Of the profiles that get hours
of a class, the one that would lose most elsewhere has first call on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from scheduler.core.snapshot import PoolView, Snapshot
from scheduler.core.window import HOUR, WEEK
from scheduler.planner.lp.grid import make_grid
from scheduler.planner.lp.linear import Programme
from scheduler.planner.lp.prices import offered
from scheduler.planner.model.case import make_case
from scheduler.planner.model.forecast import rhythm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scheduler.core.snapshot import JobView
    from scheduler.planner.lp.solver import Solution
    from scheduler.planner.model.case import Case

# With more kinds than this in the queue nobody has first call.
KINDS_MAX = 60
# Less than this share of a class's hours is no claim to it.
CLAIM_MIN = 0.01
# By so much more than the next a profile must lose elsewhere to have first call.
ADVANTAGE_MIN = 1.1
# Of a kind that came once another is reckoned with after so long.
ONCE_SECONDS = 4 * WEEK
# Ratios of times within this factor are alike.
ALIKE = 1.05


class Call(IntEnum):
    """Who is asked when hours of a pool are given away: the smallest first."""

    FIRST = 0
    SECOND = 1
    LAST = 2


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of job: how often it comes a week, and the charged seconds of one job by pool class (0: not there)."""

    view: JobView
    per_week: float
    seconds: tuple[int, ...]


def kind_of(view: JobView) -> str:
    """Return the kind of a job: what it is called if it was not said."""
    return view.kind or view.name


def calls(case: Case, solve: Callable[[Programme], Solution]) -> list[dict[str, Call]]:
    """Return, by pool class of ``case``, the call of each kind that has a job in it; no dicts if nobody goes first.

    ``solve`` raises SolverFailed.
    """
    kinds = _kinds(case)
    if len(kinds) > KINDS_MAX:
        return []
    supply = _supply(case)
    hours = _hours(kinds, supply, solve)
    profiles = _profiles(kinds)
    found: list[dict[str, Call]] = []
    for group, offered_hours in enumerate(supply):
        claims: dict[int, float] = {}
        for name in kinds:
            claims[profiles[name]] = claims.get(profiles[name], 0.0) + hours.get((name, group), 0.0)
        claimants = {profile for profile, claim in claims.items() if claim > CLAIM_MIN * offered_hours}
        losses = sorted(((_elsewhere(kinds, profiles, profile, group), profile) for profile in claimants), reverse=True)
        first = losses[0][1] if len(losses) > 1 and losses[0][0] >= ADVANTAGE_MIN * losses[1][0] else None
        found.append(
            {
                name: Call.FIRST if profile == first else Call.SECOND if profile in claimants else Call.LAST
                for name, profile in profiles.items()
            }
        )
    return found


def _kinds(case: Case) -> dict[str, Kind]:
    """Return the kinds that are in the queue or were, by name."""
    now, history = case.now, {one.kind: one for one in case.snapshot.arrivals}
    views = {kind_of(job.view): job.view for job in case.jobs if job.startable}
    views |= {kind: one.latest for kind, one in history.items()}
    alone = tuple(
        replace(views[kind], name=kind, kind=kind, done_step=0, running=None, blocked=None) for kind in sorted(views)
    )
    if len(alone) > KINDS_MAX:
        return dict.fromkeys(map(kind_of, alone), Kind(alone[0], 0.0, ()))
    fresh = make_case(replace(case.snapshot, jobs=alone))
    groups = [fresh.classes[fresh.class_of[group.pools[0]]] for group in case.classes]  # pools are in the same order
    found = {}
    for job in fresh.jobs:
        offers = [group.offers[job.index] for group in groups]
        seconds = [0 if offer is None else offer.time_for(job.view.target_step) for offer in offers]
        instants = history[job.view.name].instants if job.view.name in history else ()
        known = rhythm(instants)
        distance = known.seconds if known else max(WEEK, min(ONCE_SECONDS, now - min(instants, default=0)))
        together = known.together if known else 1.0
        found[job.view.name] = Kind(job.view, together * WEEK / distance, tuple(seconds))
    return found


def _supply(case: Case) -> list[float]:
    """Return the seconds a week that each pool class offers, whatever is charged or closed just now."""
    views = tuple(PoolView(capacity.pool) for capacity in case.capacities)
    fresh = make_case(Snapshot(case.now, case.snapshot.jobs, views, max(WEEK, case.snapshot.horizon_seconds)))
    grid = make_grid(fresh)
    found = [0.0] * len(case.classes)
    for number, market in enumerate(grid.markets):
        group = case.class_of[market.pools[0]]
        found[group] += offered(grid, number) * WEEK / fresh.snapshot.horizon_seconds / market.devices
    return found


def _hours(
    kinds: Mapping[str, Kind], supply: list[float], solve: Callable[[Programme], Solution]
) -> dict[tuple[str, int], float]:
    """Return the seconds a week that most finished weight wants, by kind and pool class.

    Rows: what classes offer; what comes of each kind; no child is served for a larger part than its parent.
    """
    import numpy as np

    names = list(kinds)
    rows: dict[object, int] = {("class", group): group for group in range(len(supply))}
    upper = list(supply)
    for name in names:
        rows["kind", name] = len(upper)
        upper.append(1.0)
    parents = {name: gate.parent for name in names if (gate := kinds[name].view.gate) is not None}
    for child, parent in parents.items():
        if parent in kinds:
            rows["gate", child] = len(upper)
            upper.append(0.0)
    columns, cost, starts = [], [], [0]
    entries: list[tuple[int, float]] = []
    for number, name in enumerate(names):
        kind = kinds[name]
        for group, seconds in enumerate(kind.seconds):
            if seconds <= 0 or supply[group] <= 0:
                continue
            share = 1.0 / seconds / kind.per_week  # of what comes of the kind, by a second a week
            mine = [(group, 1.0), (rows["kind", name], share)]
            if ("gate", name) in rows:
                mine.append((rows["gate", name], share))
            mine += [(rows["gate", child], -share) for child, parent in parents.items() if parent == name]
            entries += sorted(mine)
            columns.append((number, group))
            cost.append(kind.view.weight / seconds * HOUR)
            starts.append(len(entries))
    if not columns:
        return {}
    job = np.asarray([number for number, _ in columns], dtype=np.int64)
    programme = Programme(
        job=job,
        market=np.asarray([group for _, group in columns], dtype=np.int64),
        span=np.zeros(len(columns), dtype=np.int64),
        devices=np.ones(len(columns), dtype=np.int64),
        steps=np.ones(len(columns)),
        cost=np.asarray(cost),
        starts=np.asarray(starts, dtype=np.int64),
        rows=np.asarray([row for row, _ in entries], dtype=np.int64),
        values=np.asarray([value for _, value in entries]),
        upper=np.asarray(upper),
    )
    found = solve(programme).seconds.tolist()
    return {(names[number], group): seconds for (number, group), seconds in zip(columns, found, strict=True)}


def _profiles(kinds: Mapping[str, Kind]) -> dict[str, int]:
    """Return a number for each kind, the same for those whose times on the classes are in about the same ratios."""
    known: list[tuple[float, ...]] = []
    found = {}
    for name, kind in kinds.items():
        best = min((seconds for seconds in kind.seconds if seconds > 0), default=1)
        ratios = tuple(seconds / best for seconds in kind.seconds)
        for number, other in enumerate(known):
            if all(max(a, b) <= ALIKE * min(a, b) for a, b in zip(ratios, other, strict=True)):
                found[name] = number
                break
        else:
            found[name] = len(known)
            known.append(ratios)
    return found


def _elsewhere(kinds: Mapping[str, Kind], profiles: Mapping[str, int], profile: int, group: int) -> float:
    """Return how many times as long as on ``group`` the kinds of a profile take on the best other class."""
    kind = next(kinds[name] for name, mine in profiles.items() if mine == profile)
    others = [seconds for number, seconds in enumerate(kind.seconds) if number != group and seconds > 0]
    if kind.seconds[group] <= 0:
        return 0.0
    return min(others) / kind.seconds[group] if others else float("inf")
