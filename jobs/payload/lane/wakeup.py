"""Signals and a background thread wake an event loop through one pipe, so that slow work never stops it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any


class Wakeup:
    """Makes ``source`` readable at each signal and each ``wake``; remembers that we were asked to end."""

    def __init__(self) -> None:
        self.source, self._sink = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.terminated = False
        signal.set_wakeup_fd(self._sink, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._terminate)
        # A handler must be set for the wake-up to happen; the loop looks for itself which process ended.
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        # A SIGTERM that came while we were starting is delivered now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})

    def wake(self) -> None:
        """Make the source readable; may be called from any thread. A full pipe is awake already."""
        with suppress(BlockingIOError):
            os.write(self._sink, b"\0")

    def drain(self) -> None:
        """Make the source quiet again."""
        with suppress(BlockingIOError):
            while os.read(self.source, 4096):
                pass

    def _terminate(self, _number: int, _frame: FrameType | None) -> None:
        self.terminated = True


class Worker:
    """Runs a task beside the event loop; ``wake`` is called, from the thread, when it has ended."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._thread: threading.Thread | None = None
        self._then: Callable[[Any], None] | None = None
        self._result: Any = None
        self._ended = threading.Event()

    @property
    def busy(self) -> bool:
        """Whether a task runs or its result was not collected yet."""
        return self._thread is not None

    def start(self, task: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run ``task``; ``then`` gets its value, or the exception it raised, in ``collect``."""
        self._ended.clear()
        self._then = then
        # A daemon thread: a store that hangs must not keep the session from ending.
        self._thread = threading.Thread(target=self._run, args=(task,), daemon=True)
        self._thread.start()

    def collect(self) -> None:
        """Hand over the result if the task has ended."""
        if self._thread is not None and self._then is not None and self._ended.is_set():
            self._thread.join()
            self._thread = None
            self._then(self._result)

    def _run(self, task: Callable[[], Any]) -> None:
        try:
            self._result = task()
        except Exception as error:  # noqa: BLE001 - handed to the loop, which knows what it means
            self._result = error
        self._ended.set()
        self._wake()
