"""The planner in a process of its own, which ends when there is nothing to plan for: at rest the daemon is small.

Planning takes more memory than all else the daemon does, and a Python process never gives it back. The daemon unpickles
nothing: the child, which knows only what the daemon sends, answers in JSON. It ends by itself when its standard input
closes, so also when the daemon was killed.
"""

from __future__ import annotations

import pickle
import signal
import struct
import subprocess
import sys
import traceback
import weakref
from contextlib import suppress
from dataclasses import replace
from select import select
from typing import IO, TYPE_CHECKING

from scheduler.planner.solver import Solver
from scheduler.service.solver_process import SolverHost, end
from scheduler.store.plans import dumped, loaded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.core.plan import Plan
    from scheduler.core.snapshot import Snapshot
    from scheduler.planner import Options

PATIENCE_SECONDS = 900.0  # no plan takes a tenth of it
_SIZE = struct.Struct("<Q")
_PLAN, _FAILED = b"p", b"f"


class PlannerFailed(Exception):
    """The planner's process died, hung or raised; the message says how."""


class PlannerHost:
    """Starts the child when a plan is wanted, and again after it died or rested. Not for several threads at a time."""

    def __init__(
        self,
        options: Options,
        command: Sequence[str] | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._options = replace(options, solver=Solver)  # the child has a host of its own
        self._command = list(command or (sys.executable, "-m", "scheduler.service.planner_process"))
        self._patience_seconds = patience_seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._plans = 0
        self._looked: tuple[int, float] = (-1, 0.0)  # how many plans there were, and since when there are no more

    def plan(self, snapshot: Snapshot, incumbent: Plan | None) -> Plan:
        """Return a plan as Planner.plan does; when a second child fails as well, one of the plain dispatcher's."""
        self._plans += 1
        try:
            return self._asked(snapshot, incumbent)
        except PlannerFailed:
            try:
                return self._asked(snapshot, incumbent)
            except PlannerFailed as error:
                return self._plain(snapshot, incumbent, str(error).strip().splitlines()[-1])

    def _plain(self, snapshot: Snapshot, incumbent: Plan | None, why: str) -> Plan:
        """Plan here, with little memory and no solver: training goes on, and people are told."""
        from scheduler.planner import Planner

        plain = replace(self._options, linear=False, search_steps=0, foresight_seconds=0)
        plan = Planner(plain).plan(snapshot, incumbent)
        return replace(plan, warnings=(f"{why}; planned by the plain dispatcher", *plan.warnings))

    def rest(self) -> None:
        """End the child; the next plan starts another, without what this one remembers."""
        child, self._child = self._child, None
        if child is not None:
            end(child)

    def rest_when_idle(self, at: float, seconds: float) -> None:
        """End the child when no plan was wanted for ``seconds``; ``at`` is a stopwatch's present."""
        if self._looked[0] != self._plans:
            self._looked = (self._plans, at)
        elif at - self._looked[1] >= seconds:
            self.rest()

    def _asked(self, snapshot: Snapshot, incumbent: Plan | None) -> Plan:
        child = self._child or self._start()
        if child.stdin is None or child.stdout is None:
            raise ValueError("the planner's process has no pipes")
        try:
            _write(child.stdin, pickle.dumps((self._options, snapshot, incumbent)))
            if not select([child.stdout], [], [], self._patience_seconds)[0]:
                raise PlannerFailed(f"the planner's process gave no plan in {self._patience_seconds:g} s")
            answer = _read(child.stdout)
        except (EOFError, OSError) as error:
            self.rest()
            raise PlannerFailed(f"the planner's process ended ({child.returncode})") from error
        except PlannerFailed:
            child.kill()
            self.rest()
            raise
        if answer[:1] == _FAILED:
            raise PlannerFailed(answer[1:].decode())
        return loaded(answer[1:].decode())

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            child = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise PlannerFailed(f"the planner's process did not start ({error})") from error
        self._child = child
        weakref.finalize(self, end, child)
        return child


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Plan until ``requests`` closes: what the child does. One planner, so that it starts warm."""
    from scheduler.planner import Planner

    solvers, planner, known = SolverHost(), None, None
    while True:
        try:
            # Written by the process that started this one, and by nobody else.
            options, snapshot, incumbent = pickle.loads(_read(requests))  # noqa: S301
        except EOFError:
            return
        if planner is None or options != known:
            planner, known = Planner(replace(options, solver=solvers)), options
        try:
            answer = _PLAN + dumped(planner.plan(snapshot, incumbent)).encode()
        except Exception:  # noqa: BLE001 - the daemon says what it was and goes on
            answer = _FAILED + traceback.format_exc().encode()
        _write(answers, answer)


def _write(stream: IO[bytes], body: bytes) -> None:
    stream.write(_SIZE.pack(len(body)) + body)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes:
    (size,) = _SIZE.unpack(_exactly(stream, _SIZE.size))
    return _exactly(stream, size)


def _exactly(stream: IO[bytes], size: int) -> bytes:
    found = stream.read(size)
    if len(found) < size:
        raise EOFError
    return found


if __name__ == "__main__":
    # Ctrl-C and a stop are the daemon's; its end closes our standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with suppress(BrokenPipeError):
        serve(sys.stdin.buffer, sys.stdout.buffer)
