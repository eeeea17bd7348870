"""The planner in a child process, which ends when idle, so that the daemon needs little memory.

Plans are returned as JSON, so that the daemon does not load the planner's libraries.
"""

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

PATIENCE_SECONDS = 900.0  # more than ten times the usual time of a plan
COMMAND = (sys.executable, "-m", "scheduler.service.outside.planner_process")


class PlannerHost:
    """Makes plans in a child, which is started on demand; one plan at a time, thread-safe."""

    def __init__(
        self, options: PlannerOptions, command: Sequence[str] = COMMAND, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._options = replace(options, solver=Solver)  # the child has its own host
        self._patience_seconds = patience_seconds
        self.child = ChildHost("planner", command)
        self._plans = 0
        self._idle: tuple[int, float] = (-1, 0.0)  # the number of plans at the last check, and its time
        self._turn = threading.Lock()
        self._closed = False

    def plan(self, snapshot: Snapshot, incumbent: Plan | None) -> Plan:
        """Return a plan as ``Planner.plan`` does; if two children fail in a row, a plan of the plain dispatcher."""
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
                    # In this process, with little memory and no solver: training continues, and people are notified.
                    from scheduler.planner.planner import Planner

                    plain = Planner(replace(self._options, linear=False, search_steps=0))
                    plan = plain.plan(snapshot, incumbent)
                    return replace(plan, warnings=(f"{error}; planned by the plain dispatcher", *plan.warnings))

    def _request(self, snapshot: Snapshot, incumbent: Plan | None) -> Plan:
        return loaded(self.child.ask((self._options, snapshot, incumbent), self._patience_seconds))

    def close(self) -> None:
        """Kill the child for good; a waiting caller gets ChildFailed."""
        self._closed = True
        self.child.kill()

    def rest_when_idle(self, at: float, seconds: float) -> None:
        """End the child if no plan was requested for ``seconds``; ``at`` is the present of a stopwatch.

        The next plan starts a new one, without the caches of this one.
        """
        if self._turn.locked() or self._idle[0] != self._plans:
            self._idle = (self._plans, at)
        elif at - self._idle[1] >= seconds:
            self.child.stop()


class PlannerChild:
    """Makes plans for the host with one planner, whose caches stay warm."""

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
