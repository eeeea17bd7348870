"""Online replay of a trace: no rule sees a job before it is submitted, and every session takes as long as planned.

A rule is asked whenever a job arrives, a session ends, or its own plan wanted to start something. Sessions that it
wants now are launched and run to their end. The replay goes on until all work is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from jobs.nouns.window import DAY, HOUR, WEEK
from scheduler.core.ledger import Charge
from scheduler.core.plan import Placement, Plan
from scheduler.core.snapshot import JobView, LiveRun, PoolView, Snapshot
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.dispatch.orders import ORDERS, in_order
from scheduler.planner.model.policy import PLAIN
from scheduler.planner.model.urgency import with_urgency
from scheduler.planner.model.value import value
from scheduler.planner.planner import Planner, PlannerOptions

Decide = Callable[[Snapshot, Plan | None], Plan]

# An order looks at one instant; what it would start later it is asked again then.
GLANCE_SECONDS = 60
LOOK_SECONDS = HOUR
# A plan for each arrival and each end of a session: so many jobs take minutes.
ONLINE_JOBS = 150
WEEKS_MAX = 30
ONLINE = (*ORDERS, "density")


def by_order(name: str) -> Decide:
    """Return the rule that starts jobs in the order ``name``, one of ONLINE."""
    policy = PLAIN if name == "density" else in_order(name)

    def decide(snapshot: Snapshot, incumbent: Plan | None) -> Plan:
        del incumbent
        return dispatch(replace(snapshot, horizon_seconds=GLANCE_SECONDS), policy)

    return decide


def by_daemon(*, polished: bool = False) -> Decide:
    """Return the product as the daemon uses it: urgencies, the plan in force; ``polished`` by search too."""
    maker = Planner(PlannerOptions(search_steps=None if polished else 0))

    def decide(snapshot: Snapshot, incumbent: Plan | None) -> Plan:
        return maker.plan(with_urgency(snapshot), incumbent)

    return decide


@dataclass(frozen=True, slots=True)
class Flow:
    """Hours from submit to completion: their mean by weight, the plain one, the 95th percentile; how many are done."""

    weighted: float
    mean: float
    tail: float
    done: int


def flow_of(snapshot: Snapshot, finished: Mapping[str, int], until: int | None = None) -> Flow:
    """Return the flow of jobs ``finished`` at these instants; the others count ``until`` then, or the horizon."""
    until = snapshot.now + snapshot.horizon_seconds if until is None else until
    flows = [(view.weight, finished.get(view.name, until) - _arrives(view)) for view in snapshot.jobs]
    ordered = sorted(seconds for _, seconds in flows)
    return Flow(
        sum(weight * seconds for weight, seconds in flows) / sum(weight for weight, _ in flows) / HOUR,
        sum(ordered) / len(ordered) / HOUR,
        ordered[int(0.95 * (len(ordered) - 1))] / HOUR,
        len(finished),
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rule made of a trace; ``value`` is of its sessions within the horizon, as of the first instant."""

    flow: Flow
    on_time: int
    value: float
    sessions: int
    plans: int


def replay(snapshot: Snapshot, decide: Decide) -> Outcome:
    """Return what ``decide`` makes of the jobs of ``snapshot``, each hidden until its ``not_before``."""
    return _Replay(snapshot, decide).run()


class _Replay:
    def __init__(self, snapshot: Snapshot, decide: Decide) -> None:
        self.whole, self.decide = snapshot, decide
        self.arrivals = sorted(snapshot.jobs, key=_arrives)
        self.open: dict[str, JobView] = {}
        self.live: list[tuple[str, Placement]] = []  # launch key, session
        self.charges: dict[str, list[Charge]] = {view.pool.name: [] for view in snapshot.pools}
        self.finished: dict[str, int] = {}
        self.sessions: list[Placement] = []

    def run(self) -> Outcome:
        now, last = self.whole.now, self.whole.now + WEEKS_MAX * WEEK
        plan: Plan | None = None
        plans = 0
        while now < last and (self.arrivals or self.open):
            self._settle(now)
            while self.arrivals and _arrives(self.arrivals[0]) <= now:
                view = self.arrivals.pop(0)
                self.open[view.name] = replace(view, not_before=None)
            following = [placed.end for _, placed in self.live]
            if len(self.open) > sum(len(placed.lanes) for _, placed in self.live):
                plan = self.decide(self._snapshot(now), plan)
                plans += 1
                for placed in plan.due_now:
                    self._launch(placed)
                following = [placed.end for _, placed in self.live]
                following += [placed.start for placed in plan.placements if placed.start > now]
                following.append((now // LOOK_SECONDS + 1) * LOOK_SECONDS)
            following += [_arrives(view) for view in self.arrivals[:1]]
            now = min(following, default=last)
        self._settle(last)
        return self._outcome(last, plans)

    def _launch(self, placed: Placement) -> None:
        key = f"run-{len(self.sessions)}"
        self.sessions.append(placed)
        self.live.append((key, placed))
        for planned_lane in placed.lanes:
            self.open[planned_lane.job] = replace(self.open[planned_lane.job], running=key, last_pool=placed.pool)

    def _settle(self, now: int) -> None:
        for found in [one for one in self.live if one[1].end <= now]:
            self.live.remove(found)
            placed = found[1]
            self.charges[placed.pool].append(Charge(placed.start, placed.end))
            for planned_lane in placed.lanes:
                view = self.open[planned_lane.job]
                done = view.done_step + planned_lane.steps
                if done >= view.target_step:
                    del self.open[view.name]
                    self.finished[view.name] = placed.end
                else:
                    self.open[view.name] = replace(view, done_step=done, running=None)

    def _snapshot(self, now: int) -> Snapshot:
        views = []
        for view in self.whole.pools:
            name = view.pool.name
            runs = tuple(
                LiveRun(key, placed.start, placed.end, placed.end, tuple(one.job for one in placed.lanes))
                for key, placed in self.live
                if placed.pool == name
            )
            held = tuple(Charge(run.start, run.deadline, held=True, run=run.key) for run in runs)
            recent = tuple(charge for charge in self.charges[name] if charge.end > now - 8 * DAY)
            views.append(PoolView(view.pool, recent + held, runs))
        finished = dict.fromkeys(self.finished, 1.0)
        return Snapshot(now, tuple(self.open.values()), tuple(views), self.whole.horizon_seconds, finished)

    def _outcome(self, last: int, plans: int) -> Outcome:
        return Outcome(
            flow=flow_of(self.whole, self.finished, last),
            on_time=sum(
                view.deadline is not None and self.finished.get(view.name, last) <= view.deadline
                for view in self.whole.jobs
            ),
            value=value(self.whole, [placed for placed in self.sessions if placed.start < self.whole.now + WEEK]),
            sessions=len(self.sessions),
            plans=plans,
        )


def _arrives(view: JobView) -> int:
    return view.not_before or 0


def rules() -> dict[str, Callable[[], Decide]]:
    """Return what is compared, by name: the product first, each as a maker of a fresh rule."""
    product: dict[str, Callable[[], Decide]] = {"planner": by_daemon}
    return product | {name: partial(by_order, name) for name in ONLINE}
