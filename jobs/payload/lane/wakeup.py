"""Signals and threads wake an event loop through one pipe."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


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
