"""Processes that work for a folder, found in the process table, and the bounded wait for something to come true."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from platforms.local.processes import MARK, read_stat
from scheduler.clock import stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable

_Found = TypeVar("_Found")

# Nothing here takes a tenth of it; a machine under load may.
PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.01
_PATIENCE = threading.Event()  # never set: its wait is the pause between two looks


def until(look: Callable[[], _Found | None], what: str, seconds: float = PATIENCE_SECONDS) -> _Found:
    """Look until the answer is true and return it. Raises AssertionError, naming ``what``, when time is up."""
    end = stopwatch() + seconds
    while not (found := look()):
        if stopwatch() > end:
            raise AssertionError(f"waited {seconds:.0f} s in vain for {what}")
        _PATIENCE.wait(_LOOK_SECONDS)
    return found


def working_for(folder: Path) -> dict[int, str]:
    """Return the live processes, this one aside, that carry a mark or an argument below ``folder``: pid to words."""
    inside = f"{folder}/".encode()
    mark = f"{MARK}={folder}/".encode()
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            environment = (entry / "environ").read_bytes().split(b"\0")
            zombie = read_stat(entry.name) is None
        except OSError:
            continue
        named = any(word.startswith(inside) for word in words) or any(word.startswith(mark) for word in environment)
        if named and not zombie and int(entry.name) != os.getpid():
            found[int(entry.name)] = b" ".join(words).decode(errors="replace")
    return found


def kill(pid: int) -> None:
    """Send SIGKILL; a process that is gone already is as good as killed."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
