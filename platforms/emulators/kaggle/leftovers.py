"""What an emulator that was killed leaves behind: kernels that run on, and an account that nobody remembers."""

from __future__ import annotations

import os
import select
import shutil
from contextlib import suppress
from pathlib import Path

from platforms.local.processes import MARK, SIGKILL

_ROUNDS = 25
_WAIT_MILLISECONDS = 200


def clear(folder: Path) -> None:
    """End every kernel that works below ``folder`` and remove the folder: the new account begins empty.

    A kernel that went on while nobody knows it would publish beside the session that takes its place.
    """
    for _ in range(_ROUNDS):
        pids = _kernels(folder)
        if not pids:
            break
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                descriptor = os.pidfd_open(pid)
                os.kill(pid, SIGKILL)
                watch = select.poll()
                watch.register(descriptor, select.POLLIN)
                watch.poll(_WAIT_MILLISECONDS)
                os.close(descriptor)
    shutil.rmtree(folder, ignore_errors=True)


def _kernels(folder: Path) -> list[int]:
    mark = f"{MARK}={folder}/".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(word.startswith(mark) for word in (process / "environ").read_bytes().split(b"\0")):
                found.append(int(process.name))
    return found
