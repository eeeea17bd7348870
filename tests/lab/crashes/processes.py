"""Processes that work for a folder, found in the process table."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from platforms.local.processes import MARK, read_stat


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
