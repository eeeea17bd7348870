"""First call: whoever loses most without a pool has its hours first, for work that is there and work expected.

Hours of a window that those cannot use before its end go to the others; within one call goes first what brings most
weight for the time it has left, reckoned anew as work shrinks. Nothing is reckoned of what hours are worth by the day.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scheduler.core.plan import KeptHours
from scheduler.planner.dispatch.dispatcher import extend
from scheduler.planner.dispatch.orders import soonest_for_weight
from scheduler.planner.lp.steady_state import Call, calls, kind_of
from scheduler.planner.model.case import make_case
from scheduler.planner.model.forecast import EXPECTED, expected
from scheduler.planner.model.policy import Policy, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scheduler.core.plan import Placement
    from scheduler.planner.lp.linear import Programme
    from scheduler.planner.lp.solver import Solution
    from scheduler.planner.model.case import Case
    from scheduler.planner.model.forecast import Expected


@dataclass(frozen=True, slots=True)
class Calls:
    """Who is asked first on which pool, the case with the jobs that are expected, and what is known of those."""

    case: Case
    of_pool: Mapping[str, Mapping[str, Call]]
    expected: tuple[Expected, ...]

    def call(self, group: int, job: int) -> Call:
        """Return when ``job`` is asked on a class."""
        of_kind = self.of_pool[self.case.classes[group].pool.name]
        return of_kind.get(kind_of(self.case.jobs[job].view), Call.SECOND)


def calls_of(case: Case, solve: Callable[[Programme], Solution]) -> Calls | None:
    """Return who goes first where; None when nobody has first call on anything. ``solve`` raises SolverFailed."""
    found = calls(case, solve)
    first = {kind for of_class in found for kind, call in of_class.items() if call is Call.FIRST}
    if not first:
        return None
    of_pool = {pool.pool.name: found[case.class_of[number]] for number, pool in enumerate(case.capacities)}
    coming = tuple(one for one in expected(case.snapshot) if one.kind in first)
    if coming:
        snapshot = replace(case.snapshot, jobs=(*case.snapshot.jobs, *(one.view for one in coming)))
        case = make_case(snapshot, firm_deadlines=case.firm_deadlines)
    return Calls(case, of_pool, coming)


def scheduled(found: Calls, policy: Policy) -> Schedule:
    """Return the sessions of all calls one after the other, expected jobs included; urgent jobs are in each of them."""
    by_ratio = replace(policy, order=soonest_for_weight, admits=None, phased={}, factors={}, pinned={})
    schedule = Schedule((), {})
    for call in Call:
        asked = found.case if call is Call.LAST else _asked(found, call, policy.urgent)
        schedule = extend(asked, schedule, by_ratio)
    return schedule


def there(placements: Sequence[Placement]) -> tuple[Placement, ...]:
    """Return ``placements`` without the jobs that are only expected, and without sessions that only they are in."""
    return tuple(
        replace(placed, lanes=tuple(lane for lane in placed.lanes if not lane.job.startswith(EXPECTED)))
        for placed in placements
        if not _is_expected(placed)
    )


def kept_hours(found: Calls, placements: Sequence[Placement]) -> tuple[KeptHours, ...]:
    """Return the hours that ``placements`` have for jobs that are only expected, by instant, kind and pool."""
    seconds: dict[tuple[str, str], int] = {}
    for placed in placements:
        if _is_expected(placed):
            key = placed.lanes[0].job, placed.pool
            seconds[key] = seconds.get(key, 0) + placed.end - placed.start
    coming: Mapping[str, Expected] = {one.view.name: one for one in found.expected}
    kept = [
        KeptHours(one.kind, pool, one.at, total, round(one.sure, 3), one.said)
        for (name, pool), total in seconds.items()
        for one in [coming[name]]
    ]
    return tuple(sorted(kept, key=lambda one: (one.expected_at, one.kind, one.pool)))


def _is_expected(placed: Placement) -> bool:
    return all(lane.job.startswith(EXPECTED) for lane in placed.lanes)


def _asked(found: Calls, call: Call, urgent: frozenset[int]) -> Case:
    """Return the case in which a job may only go where it is asked by then."""
    return found.case.limited_to(lambda group, job: found.call(group, job) <= call or job in urgent)
