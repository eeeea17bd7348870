"""The planner in a process of its own, which ends when there is nothing to plan for: at rest the daemon is small.

Its plans come back as JSON, so that the daemon never loads the libraries that made them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import replace

from scheduler.core.plan import Plan
from scheduler.core.snapshot import Snapshot
from scheduler.planner.lp.solver import Solver
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.service.outside.child_process import ChildFailed, ChildHost, serve
from scheduler.service.outside.solver_process import SolverHost
from scheduler.store.plan_json import dumped, loaded

PATIENCE_SECONDS = 900.0  # no plan takes a tenth of it
COMMAND = (sys.executable, "-m", "scheduler.service.outside.planner_process")


class PlannerHost:
    """Plans in a child, which is started when a plan is wanted: one plan at a time, whichever thread asks."""

    def __init__(
        self, options: PlannerOptions, command: Sequence[str] = COMMAND, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._options = replace(options, solver=Solver)  # the child has a host of its own
        self._patience_seconds = patience_seconds
        self.child = ChildHost("planner", command)
        self._plans = 0
        self._looked: tuple[int, float] = (-1, 0.0)  # how many plans there were, and since when there are no more
        self._turn = threading.Lock()
        self._closed = False

    def plan(self, snapshot: Snapshot, incumbent: Plan | None) -> Plan:
        """Return a plan as Planner.plan does; when a second child fails as well, one of the plain dispatcher's."""
        with self._turn:
            self._plans += 1
            try:
                return self._request(snapshot, incumbent)
            except ChildFailed:
                if self._closed:
                    raise
                try:
                    return self._request(snapshot, incumbent)
                except ChildFailed as error:
                    # Here, with little memory and no solver: training goes on, and people are told.
                    from scheduler.planner.planner import Planner

                    plain = Planner(replace(self._options, linear=False, search_steps=0))
                    plan = plain.plan(snapshot, incumbent)
                    return replace(plan, warnings=(f"{error}; planned by the plain dispatcher", *plan.warnings))

    def _request(self, snapshot: Snapshot, incumbent: Plan | None) -> Plan:
        return loaded(self.child.ask((self._options, snapshot, incumbent), self._patience_seconds))

    def close(self) -> None:
        """End the child for good, also one that is at work: then who asked gets ChildFailed."""
        self._closed = True
        self.child.kill()

    def rest_when_idle(self, at: float, seconds: float) -> None:
        """End the child when no plan was wanted for ``seconds``; ``at`` is a stopwatch's present.

        The next plan starts another, without what this one remembers.
        """
        if self._turn.locked() or self._looked[0] != self._plans:
            self._looked = (self._plans, at)
        elif at - self._looked[1] >= seconds:
            self.child.rest()


class PlannerChild:
    """Plans what the host sends. One planner, so that it starts warm."""

    def __init__(self) -> None:
        self._solvers = SolverHost()
        self._planner: Planner | None = None
        self._options: PlannerOptions | None = None

    def __call__(self, question: tuple[PlannerOptions, Snapshot, Plan | None]) -> str:
        """Return the plan in JSON."""
        from scheduler.planner.planner import Planner

        options, snapshot, incumbent = question
        if self._planner is None or options != self._options:
            self._planner, self._options = Planner(replace(options, solver=self._solvers)), options
        return dumped(self._planner.plan(snapshot, incumbent))


if __name__ == "__main__":
    serve(PlannerChild())
