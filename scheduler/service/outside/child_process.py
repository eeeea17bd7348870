"""Child processes of the daemon: for native code that may hang, and for memory that Python does not return.

Parent and child exchange pickles through the child's standard input and output, which no other process can write. The
child ends when its input closes, also if the parent is killed.
"""

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
    """The child did not start, died, hung or raised an error; the message has the reason."""


class ChildHost:
    """Starts the child at the first request, and again after it died or was ended. Not thread-safe.

    ``command`` runs a program that calls :func:`serve`; ``name`` is the child's name in messages.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self._name = f"the {name}'s process"
        self._command = list(command)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process ID of the child, None if there is none."""
        return None if self._child is None else self._child.pid

    def ask(self, question: object, seconds: float) -> Any:
        """Return the child's answer within ``seconds``. Raises ChildFailed; the next request starts a new child."""
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
            done, answer = pickle.load(child.stdout)  # noqa: S301 - written by this program's child
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            self.stop()
            status = child.returncode
            how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            how = f"did not answer in {seconds:g} s and was ended" if hung.is_set() else how
            raise ChildFailed(f"{self._name} {how}") from error
        finally:
            timer.cancel()
        if not done:
            raise ChildFailed(answer)
        return answer

    def stop(self) -> None:
        """End the child; the next request starts a new one, without the state of this one."""
        child, self._child = self._child, None
        if child is not None:
            _end(child)

    def kill(self) -> None:
        """Kill the child, from any thread; a waiting caller gets ChildFailed."""
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


def call_in_child(name: str, seconds: float, function: Callable[..., Any], *arguments: object) -> Any:
    """Run ``function``, from a module's top level, in a child process and return its result. Raises ChildFailed."""
    child = ChildHost(name, (sys.executable, "-m", __name__))
    try:
        return child.ask((function, arguments), seconds)
    finally:
        child.stop()


def serve(answer: Callable[[Any], object]) -> None:
    """Answer requests until the input closes; this is the main function of the child.

    An error of ``answer`` is reported with its type and message.
    """
    # The parent handles Ctrl-C and stops; its end closes standard input here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not become an answer
    with suppress(BrokenPipeError), answers:
        while True:
            try:
                question = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by this program's parent
            except EOFError:
                return
            try:
                reply = (True, answer(question))
            except Exception as error:  # noqa: BLE001 - reported to the parent, which continues
                reply = (False, f"{type(error).__name__}: {error}")
            pickle.dump(reply, answers)
            answers.flush()


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child; an idle child ends at once."""
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    try:
        child.wait(1.0)
    except (subprocess.TimeoutExpired, OSError):  # a clock change can make the sleep time negative
        child.kill()
        child.wait()


if __name__ == "__main__":
    serve(lambda call: call[0](*call[1]))
