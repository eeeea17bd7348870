"""Waiting for something to come true: bounded by real time that no machine under load needs, never by turns."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, TypeVar

from scheduler.clock import stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from platforms.base import Observed, SessionState

_Found = TypeVar("_Found")

# Nothing here takes a tenth of it; a machine under load may.
PATIENCE_SECONDS = 240.0
_PAUSE_SECONDS = 0.01
_PAUSE_SECONDS_MAX = 0.1  # many looks read the whole process table: who waits long looks seldom
_PAUSE_GROWS = 1.2
_WORK_SECONDS = 0.3
_PATIENCE = threading.Event()  # never set: its wait is the pause between two looks


def files_called(name: str, folder: Path) -> list[Path]:
    """Return the files of this name below ``folder``, sorted; folders that vanish meanwhile are passed over."""
    return sorted(Path(root, name) for root, _, names in os.walk(folder) if name in names)


def pause(seconds: float = _PAUSE_SECONDS) -> None:
    """Let other threads and processes work for ``seconds``."""
    _PATIENCE.wait(seconds)


def until(
    look: Callable[[], _Found | None], what: str, seconds: float = PATIENCE_SECONDS, every: float = 0.0
) -> _Found:
    """Look ``every`` seconds, or less and less often, until the answer is true and return it.

    Raises AssertionError, naming ``what`` and the last answer, when ``seconds`` are over.
    """
    end = stopwatch() + seconds
    growing = _PAUSE_SECONDS
    while not (found := look()):
        if stopwatch() > end:
            raise AssertionError(f"waited {seconds:.0f} s in vain for {what}; last seen: {found}")
        pause(every or growing)
        growing = min(growing * _PAUSE_GROWS, _PAUSE_SECONDS_MAX)
    return found


def until_state(
    find: Callable[[], Observed | None], *states: SessionState, then: Callable[[], object] = pause
) -> Observed:
    """Return what ``find`` tells of a session once that is one of ``states``; ``then`` is done between two looks."""
    end = stopwatch() + PATIENCE_SECONDS
    while (seen := find()) is None or seen.state not in states:
        if stopwatch() > end:
            raise AssertionError(f"waited {PATIENCE_SECONDS:.0f} s in vain for {states}; last seen: {seen}")
        then()
    return seen


def slowness() -> float:
    """Return how much longer an hour of a rehearsal has to be than on an idle machine, at least 1.

    Its sessions must have the time to start, train and save, on the share of a core that a process has here now.
    """
    began, worked = stopwatch(), process_time()
    while process_time() < worked + _WORK_SECONDS:
        pass
    return max(1.0, 2 * (stopwatch() - began) / (process_time() - worked) - 1)
