"""Calls: slow work in background threads, so that nothing waits for it longer than a bounded time.

All callers in one cycle together wait one such time at most. A late answer is kept for the next caller
with the same request; until then the same work is not started again.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from scheduler.clock import stopwatch

_Answer = TypeVar("_Answer")
PATIENCE_WALL_SECONDS = 1.0  # of one cycle in total
_AT_LEAST_WALL_SECONDS = 0.05  # of each request, so that immediate answers arrive also after the patience is used up
_PASSED_OVER_MAX = 10  # an answer is dropped after so many requests of its kind that did not want it
_here = threading.local()


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Unfinished work: its duration in real seconds, and its progress if reported."""

    kind: str
    name: str
    wall_seconds: float
    progress: str


class _Call:
    """One piece of work in a background thread."""

    def __init__(self, name: str, work: Callable[[], Any], calls: "Calls") -> None:
        self._work = work
        self._calls = calls
        self.done = threading.Event()
        self.answer: Any = None
        self.error: BaseException | None = None
        self.since = stopwatch()
        self.progress = ""
        self.failed = ""
        self.passed_over = 0
        self.reported = False
        self.given_up = False  # the caller does not wait any more
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        _here.call = self
        try:
            self.answer = self._work()
        except BaseException as error:  # noqa: BLE001 - raised again when the answer is fetched
            self.error = error
        finally:
            self.done.set()
        if self.given_up:
            self._calls.on_late()


def tell(progress: str) -> None:
    """Report the progress of the work of this thread; does nothing outside of such work."""
    call = getattr(_here, "call", None)
    if call is not None:
        call.progress = progress


def fail(why: str) -> None:
    """Report that the work of this thread failed, for display; it is retried."""
    call = getattr(_here, "call", None)
    if call is not None:
        call.failed = why


class Calls:
    """Runs slow work in parallel threads and waits for it a bounded time.

    ``patience_seconds`` (real time) is how long one turn waits for its work. ``on_late`` is called in the thread of the
    work when an answer comes whose caller has stopped waiting.
    """

    def __init__(
        self, patience_seconds: float = PATIENCE_WALL_SECONDS, on_late: Callable[[], None] = lambda: None
    ) -> None:
        self._patience = patience_seconds
        self.on_late = on_late
        self._calls: dict[tuple[str, str], _Call] = {}
        self._failures: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()  # work may start more work
        self._turn = threading.local()

    def begin(self) -> None:
        """Start a turn of this thread, such as a cycle: its calls of ``gather`` wait ``patience_seconds`` together."""
        self._turn.left = self._patience

    def gather(self, kind: str, work: Mapping[str, Callable[[], _Answer]]) -> dict[str, _Answer]:
        """Run work by name and return the answers that have arrived, also those of work that an earlier call started.

        Work of earlier calls is not waited for. If work has raised an exception, it is raised here.
        """
        with self._lock:
            new = {name: _Call(f"{kind} {name}", work[name], self) for name in work if (kind, name) not in self._calls}
            self._calls |= {(kind, name): call for name, call in new.items()}
        self._wait(list(new.values()))
        with self._lock:
            over = self._pop_finished(kind, work)
        for call in over.values():
            if call.error is not None:
                raise call.error
        return {name: call.answer for (of, name), call in over.items() if of == kind and name in work}

    def _pop_finished(self, kind: str, names: Collection[str]) -> dict[tuple[str, str], _Call]:
        """Remove and return finished work that was requested, that failed, or that no call has requested for long."""
        over = {}
        for key, call in list(self._calls.items()):
            if not call.done.is_set() or not (key[0] == kind or call.error):
                continue
            call.passed_over += 1
            if call.error or key[1] in names or call.passed_over >= _PASSED_OVER_MAX:
                over[key] = self._calls.pop(key)
                self._failures.pop(key, None)
                if call.failed:
                    self._failures[key] = call.failed
        return over

    def forget(self, kinds: Collection[str]) -> None:
        """Drop the calls of these kinds, because their results are outdated. Running work continues."""
        with self._lock:
            for key in [key for key in self._calls if key[0] in kinds]:
                del self._calls[key]

    def settle(self, kinds: Collection[str], wall_seconds: float) -> None:
        """Wait a bounded time for running work of these kinds."""
        with self._lock:
            left = [call for key, call in self._calls.items() if key[0] in kinds]
        until = stopwatch() + wall_seconds
        for call in left:
            call.done.wait(max(0.0, until - stopwatch()))

    def _wait(self, begun: list[_Call]) -> None:
        began = stopwatch()
        left = getattr(self._turn, "left", self._patience)
        until = began + min(self._patience, max(left, _AT_LEAST_WALL_SECONDS))
        for call in begun:
            if not call.done.wait(max(0.0, until - stopwatch())):
                call.given_up = True
        if hasattr(self._turn, "left"):
            self._turn.left = left - (stopwatch() - began)

    def under_way(self, kind: str) -> Collection[str]:
        """Return the names of unfinished work of a kind."""
        with self._lock:
            return {name for (of, name), call in self._calls.items() if of == kind and not call.done.is_set()}

    def news(self, kinds: Collection[str]) -> bool:
        """Return whether late answers of these kinds have arrived since the last call."""
        with self._lock:
            fresh = [
                call
                for (of, _), call in self._calls.items()
                if of in kinds and call.done.is_set() and not call.reported
            ]
        for call in fresh:
            call.reported = True
        return bool(fresh)

    def failures(self) -> Mapping[tuple[str, str], str]:
        """Return the reasons of failed work that has not succeeded since, by kind and name."""
        with self._lock:
            return dict(self._failures)

    def slow(self, wall_seconds: float) -> list[UnderWay]:
        """Return work of all kinds that has run for so long, oldest first."""
        present = stopwatch()
        with self._lock:
            late = [
                UnderWay(kind, name, present - call.since, call.progress)
                for (kind, name), call in self._calls.items()
                if not call.done.is_set() and present - call.since >= wall_seconds
            ]
        return sorted(late, key=lambda one: -one.wall_seconds)
