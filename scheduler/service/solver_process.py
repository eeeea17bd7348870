"""The solver in a process of its own: native code that aborts or hangs must not take the daemon with it.

One child serves all solvers of a process and is started when the first programme comes. It ends by itself when its
standard input closes, so also when its parent was killed. Messages are a JSON header and plain arrays, never pickles.
"""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import weakref
from contextlib import suppress
from dataclasses import fields
from itertools import count
from select import select
from typing import TYPE_CHECKING, Any

from scheduler.planner.solver import Solution, Solver, SolverFailed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

    import numpy as np
    from numpy.typing import NDArray

    from scheduler.planner.linear import Programme

    Arrays = dict[str, NDArray[Any]]

# How much longer than its own limit a solver may take to answer, its start included, before it is ended.
PATIENCE_SECONDS = 10.0
COMMAND = (sys.executable, "-m", "scheduler.service.solver_process")
_SIZES = struct.Struct("<QQ")


class SolverHost:
    """Starts the child when it is needed, and again after it died. Calling it makes a solver with its own memory."""

    def __init__(self, command: Sequence[str] | None = None, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._command = list(command or COMMAND)
        self._patience_seconds = patience_seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._numbers = count(1)
        self._forgotten: list[int] = []

    def __call__(self, time_limit_seconds: float) -> RemoteSolver:
        """Return a solver that gives up after ``time_limit_seconds`` of real time."""
        number = next(self._numbers)
        solver = RemoteSolver(self, number, time_limit_seconds)
        weakref.finalize(solver, self._forgotten.append, number)
        return solver

    def ask(self, number: int, time_limit_seconds: float, arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        """Return the child's answer. Raises SolverFailed when it dies or hangs; the next question starts another."""
        child = self._child or self._start()
        forget, self._forgotten[:] = self._forgotten.copy(), []
        header = {"solver": number, "time_limit_seconds": time_limit_seconds, "forget": forget}
        if child.stdin is None or child.stdout is None:
            raise ValueError("the solver's process has no pipes")
        try:
            _write(child.stdin, header, arrays)
            if not select([child.stdout], [], [], time_limit_seconds + self._patience_seconds)[0]:
                child.kill()
                child.wait()
                raise SolverFailed(f"the solver's process did not answer in {time_limit_seconds:g} s and was ended")
            return _read(child.stdout)
        except (EOFError, OSError) as error:
            raise SolverFailed(f"the solver's process {_ending(child.wait())}") from error
        finally:
            if child.poll() is not None:
                self._child = None

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            child = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise SolverFailed(f"the solver's process did not start ({error})") from error
        self._child = child
        weakref.finalize(self, end, child)
        return child


class RemoteSolver:
    """Answers as planner.solver.Solver does, from the host's child."""

    def __init__(self, host: SolverHost, number: int, time_limit_seconds: float) -> None:
        self._host = host
        self._number = number
        self._time_limit_seconds = time_limit_seconds

    def solve(self, programme: Programme) -> Solution:
        """Return an optimum of ``programme``; raises SolverFailed."""
        arrays = {field.name: getattr(programme, field.name) for field in fields(programme)}
        header, found = self._host.ask(self._number, self._time_limit_seconds, arrays)
        if "why" in header:
            raise SolverFailed(header["why"])
        return Solution(header["bound"], found["seconds"], found["prices"], header["iterations"])


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer until ``requests`` closes: what the child does."""
    from scheduler.planner.linear import Programme

    solvers: dict[int, Solver] = {}
    while True:
        try:
            header, arrays = _read(requests)
        except EOFError:
            return
        for number in header["forget"]:
            solvers.pop(number, None)
        try:
            if header["solver"] not in solvers:
                solvers[header["solver"]] = Solver(header["time_limit_seconds"])
            found = solvers[header["solver"]].solve(Programme(**arrays))
        except SolverFailed as error:
            _write(answers, {"why": error.why}, {})
        else:
            answer = {"bound": found.bound, "iterations": found.iterations}
            _write(answers, answer, {"seconds": found.seconds, "prices": found.prices})


def _write(stream: IO[bytes], header: dict[str, Any], arrays: Arrays) -> None:
    bodies = [array.tobytes() for array in arrays.values()]
    shapes = [(name, array.dtype.str, len(body)) for (name, array), body in zip(arrays.items(), bodies, strict=True)]
    text = json.dumps({**header, "arrays": shapes}).encode()
    stream.write(_SIZES.pack(len(text), sum(map(len, bodies))) + text)
    stream.writelines(bodies)
    stream.flush()


def _read(stream: IO[bytes]) -> tuple[dict[str, Any], Arrays]:
    import numpy as np

    text_size, body_size = _SIZES.unpack(_exactly(stream, _SIZES.size))
    header: dict[str, Any] = json.loads(_exactly(stream, text_size))
    body = memoryview(bytearray(_exactly(stream, body_size)))  # arrays that may be written in
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, dtype, size in header.pop("arrays"):
        arrays[name], body = np.frombuffer(body[:size], dtype), body[size:]
    return header, arrays


def _exactly(stream: IO[bytes], size: int) -> bytes:
    found = stream.read(size)
    if len(found) < size:
        raise EOFError
    return found


def _ending(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def end(child: subprocess.Popen[bytes]) -> None:
    """End the child when its host is gone; a child that waits for requests ends at once."""
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    try:
        child.wait(1.0)
    except (subprocess.TimeoutExpired, OSError):  # a clock that is set meanwhile makes a short sleep invalid
        child.kill()
        child.wait()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; its end closes our standard input
    with suppress(BrokenPipeError):
        serve(sys.stdin.buffer, sys.stdout.buffer)
