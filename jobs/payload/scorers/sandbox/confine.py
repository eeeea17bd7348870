"""Control groups around the sandbox: the one limit on what all of its processes use together.

A scope of systemd where it may be had, else a control group of our own as root, else the limits of each process alone,
and the sum is counted while they run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .limits import Limits

_TREE = Path("/sys/fs/cgroup")
_TRY_SECONDS = 10
_LEAVE_TRIES, _LEAVE_SECONDS = 100, 0.02


@dataclass(frozen=True, slots=True)
class Confinement:
    """Words before a command that put it below a limit, and the groups to remove afterwards.

    ``kind`` is ``scope``, ``cgroup`` or ``rlimits``; the last bounds each process, and :mod:`.usage` counts their sum.
    """

    kind: str
    words: tuple[str, ...] = ()
    groups: tuple[Path, ...] = ()

    def leave(self) -> None:
        """Remove the groups, once what was killed in them is gone; one that stays busy goes with the machine."""
        for group in self.groups:
            for _ in range(_LEAVE_TRIES):
                try:
                    group.rmdir()
                except FileNotFoundError:
                    break
                except OSError:  # what was killed a moment ago is still dying
                    threading.Event().wait(_LEAVE_SECONDS)
                else:
                    break


def confine(limits: Limits) -> Confinement:
    """Return the best confinement that this machine grants."""
    return _scope(limits) or _own_group(limits) or Confinement("rlimits")


def _scope(limits: Limits) -> Confinement | None:
    if shutil.which("systemd-run") is None:
        return None
    words = ["systemd-run", "--scope", "--quiet", "--collect", *(["--user"] if os.geteuid() else [])]
    words += [
        "-p",
        f"MemoryMax={limits.total_bytes}",
        "-p",
        "MemorySwapMax=0",
        "-p",
        f"TasksMax={2 * limits.processes}",
    ]
    words.append("--")
    return Confinement("scope", tuple(words)) if _works([*words, "true"]) else None


def _own_group(limits: Limits) -> Confinement | None:
    if os.geteuid():
        return None
    name = f"uff-sandbox-{uuid.uuid4().hex[:12]}"
    made = _one_tree(name, limits) or _tree_each(name, limits)
    if made is None:
        return None
    # The shell enters the groups and becomes the command, so that nothing of it ever runs outside.
    enter = "".join(f"echo $$ >{group}/cgroup.procs && " for group in made)
    found = Confinement("cgroup", ("sh", "-c", f'{enter}exec "$@"', "sh"), made)
    if _works([*found.words, "true"]):
        return found
    found.leave()
    return None


def _one_tree(name: str, limits: Limits) -> tuple[Path, ...] | None:
    try:
        if not {"memory", "pids"} <= set((_TREE / "cgroup.subtree_control").read_text().split()):
            return None
    except OSError:
        return None
    figures = {"memory.max": limits.total_bytes, "memory.swap.max": 0, "pids.max": 2 * limits.processes}
    return _made({_TREE / name: figures})


def _tree_each(name: str, limits: Limits) -> tuple[Path, ...] | None:
    figures = {
        _TREE / "memory" / name: {"memory.limit_in_bytes": limits.total_bytes},
        _TREE / "pids" / name: {"pids.max": 2 * limits.processes},
    }
    return _made(figures) if all(group.parent.is_dir() for group in figures) else None


def _made(figures: dict[Path, dict[str, int]]) -> tuple[Path, ...] | None:
    made: list[Path] = []
    try:
        for group, limits in figures.items():
            group.mkdir()
            made.append(group)
            for file, value in limits.items():
                if (group / file).exists():  # without swap accounting there is no such file
                    (group / file).write_text(str(value))
    except OSError:
        Confinement("cgroup", (), tuple(made)).leave()
        return None
    return tuple(made)


def _works(command: Sequence[str]) -> bool:
    try:
        done = subprocess.run(command, check=False, capture_output=True, timeout=_TRY_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
