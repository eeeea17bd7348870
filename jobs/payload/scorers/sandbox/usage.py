"""The memory that a sandbox uses, summed here where no control group bounds it."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
_COUNTED = ("Pss_Anon:", "Pss_Shmem:")  # what no file backs; shared pages count once among those who share them


def memory_bytes(root: int) -> int:
    """Return the bytes of memory that a process and all below it hold; those that end meanwhile count nothing."""
    return sum(_held_by(pid) for pid in _family(root))


def files_of(root: int, folder: str) -> int:
    """Return how many files there are in a ``folder`` of the sandbox; 0 before it is made, and once all ended."""
    for pid in reversed(_family(root)):
        try:
            if Path(f"/proc/{pid}/root/").samefile("/"):
                continue
            state = os.statvfs(f"/proc/{pid}/root{folder}")
        except OSError:
            continue
        return state.f_files - state.f_ffree
    return 0


def _family(root: int) -> list[int]:
    """Return a process and its descendants, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(") ")[2].split()[1]), []).append(int(entry.name))
    family = [root]
    for pid in family:  # it grows while it is read
        family += children.get(pid, [])
    return family


def _held_by(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(_COUNTED))
