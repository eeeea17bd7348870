"""The solver in a child process: native code that aborts or hangs must not stop the daemon.

One child serves all solvers of a process and is started at the first programme.
"""

import sys
import weakref
from collections.abc import Sequence
from itertools import count

from scheduler.planner.lp.linear import Programme
from scheduler.planner.lp.solver import Solution, Solver, SolverFailed
from scheduler.service.outside.child_process import ChildFailed, ChildHost, serve

# How long a solver may exceed its own limit, with its start, before it is killed.
PATIENCE_SECONDS = 10.0
COMMAND = (sys.executable, "-m", "scheduler.service.outside.solver_process")


class SolverHost:
    """Starts the child on demand, and again after it died. Calling it makes a solver with separate state."""

    def __init__(self, command: Sequence[str] | None = None, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.child = ChildHost("solver", command or COMMAND)
        self._patience_seconds = patience_seconds
        self._numbers = count(1)
        self._forgotten: list[int] = []

    def __call__(self, time_limit_seconds: float) -> "RemoteSolver":
        """Return a solver that gives up after ``time_limit_seconds`` of real time."""
        number = next(self._numbers)
        solver = RemoteSolver(self, number, time_limit_seconds)
        weakref.finalize(solver, self._forgotten.append, number)
        return solver

    def ask(self, number: int, time_limit_seconds: float, programme: Programme) -> Solution | str:
        """Return the child's solution, or the reason why there is none. Raises ChildFailed."""
        forget, self._forgotten[:] = self._forgotten.copy(), []
        question = (number, time_limit_seconds, programme, forget)
        solution: Solution | str = self.child.ask(question, time_limit_seconds + self._patience_seconds)
        return solution


class RemoteSolver:
    """A ``planner.solver.Solver`` that runs in the host's child."""

    def __init__(self, host: SolverHost, number: int, time_limit_seconds: float) -> None:
        self._host = host
        self._number = number
        self._time_limit_seconds = time_limit_seconds

    def solve(self, programme: Programme) -> Solution:
        """Return an optimum of ``programme``; raises SolverFailed."""
        try:
            solution = self._host.ask(self._number, self._time_limit_seconds, programme)
        except ChildFailed as error:
            raise SolverFailed(str(error)) from error
        if isinstance(solution, str):
            raise SolverFailed(solution)
        return solution


class SolverChild:
    """Solves programmes for the host, with one solver per number."""

    def __init__(self) -> None:
        self._solvers: dict[int, Solver] = {}

    def __call__(self, question: tuple[int, float, Programme, list[int]]) -> Solution | str:
        """Return an optimum, or the reason why there is none."""
        number, time_limit_seconds, programme, forget = question
        for forgotten in forget:
            self._solvers.pop(forgotten, None)
        try:
            if number not in self._solvers:
                self._solvers[number] = Solver(time_limit_seconds)
            return self._solvers[number].solve(programme)
        except SolverFailed as error:
            return error.why


if __name__ == "__main__":
    serve(SolverChild())
