"""Processes that work for a folder, found in the process table."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from platforms.local.processes import MARK, read_stat


def working_for(folder: Path) -> dict[int, str]:
    """Return the live processes, this one aside, that carry a mark or an argument below ``folder``: pid to words."""
    inside = f"{folder}/".encode()
    mark = f"\0{MARK}={folder}/".encode()
    found = {}
    for pid in os.listdir("/proc"):  # noqa: PTH208 - waits look many times, and pathlib costs more than the look
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        try:
            words = _read(f"/proc/{pid}/cmdline").split(b"\0")
            named = any(word.startswith(inside) for word in words) or mark in b"\0" + _read(f"/proc/{pid}/environ")
            zombie = named and read_stat(pid) is None
        except OSError:
            continue
        if named and not zombie:
            found[int(pid)] = b" ".join(words).decode(errors="replace")
    return found


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - as above
        return file.read()


def kill(pid: int) -> None:
    """Send SIGKILL; a process that is gone already is as good as killed."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
