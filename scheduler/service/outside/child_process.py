"""A part of the daemon in a process of its own: for native code that may hang, or memory that Python never gives back.

Parent and child pickle to each other through the child's standard input and output; no other process writes there. The
child ends by itself when its input closes, so also when its parent was killed.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Timer
from typing import Any


class ChildFailed(Exception):
    """The child did not start, died, hung or raised; the message says which."""


class ChildHost:
    """Starts the child when it is asked, and again after it died or rested. Not for several threads at a time.

    ``command`` runs a program that calls :func:`serve`; ``name`` is what messages call the child.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self._name = f"the {name}'s process"
        self._command = list(command)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The child's process, None while there is none."""
        return None if self._child is None else self._child.pid

    def ask(self, question: object, seconds: float) -> Any:
        """Return the child's answer, for which it has ``seconds``. Raises ChildFailed; then the next starts another."""
        child = self._child or self._start()
        hung = Event()

        def give_up() -> None:
            hung.set()
            child.kill()

        timer = Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            if child.stdin is None or child.stdout is None:
                raise ValueError(f"{self._name} has no pipes")
            pickle.dump(question, child.stdin)
            child.stdin.flush()
            done, answer = pickle.load(child.stdout)  # noqa: S301 - written by our own child
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            self.rest()
            status = child.returncode
            how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            how = f"did not answer in {seconds:g} s and was ended" if hung.is_set() else how
            raise ChildFailed(f"{self._name} {how}") from error
        finally:
            timer.cancel()
        if not done:
            raise ChildFailed(answer)
        return answer

    def rest(self) -> None:
        """End the child; the next question starts another, without what this one remembers."""
        child, self._child = self._child, None
        if child is not None:
            _end(child)

    def kill(self) -> None:
        """End the child at once, from any thread: who waits for its answer gets ChildFailed."""
        child = self._child
        if child is not None:
            child.kill()
            child.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            child = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise ChildFailed(f"{self._name} did not start ({error})") from error
        self._child = child
        weakref.finalize(self, _end, child)
        return child


def serve(answer: Callable[[Any], object]) -> None:
    """Answer what comes until the parent is gone or wants no more: all that the child does.

    An error that ``answer`` raises is reported as its kind and its words.
    """
    # Ctrl-C and a stop are the parent's; its end closes our standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    with suppress(BrokenPipeError), answers:
        while True:
            try:
                question = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by our own parent
            except EOFError:
                return
            try:
                reply = (True, answer(question))
            except Exception as error:  # noqa: BLE001 - the parent says what it was and goes on
                reply = (False, f"{type(error).__name__}: {error}")
            pickle.dump(reply, answers)
            answers.flush()


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child; one that waits for questions ends at once."""
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    try:
        child.wait(1.0)
    except (subprocess.TimeoutExpired, OSError):  # a clock that is set meanwhile makes a short sleep invalid
        child.kill()
        child.wait()
