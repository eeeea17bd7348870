"""What an emulator that was killed leaves behind: kernels that run on."""

from __future__ import annotations

import os
import select
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from platforms.local.processes import MARK, SIGKILL

if TYPE_CHECKING:
    from collections.abc import Collection

_ROUNDS = 25
_WAIT_MILLISECONDS = 200


def clear(folder: Path) -> None:
    """End every kernel that works below ``folder`` and remove the folder: the new account begins empty.

    A kernel that went on while nobody knows it would publish beside the session that takes its place.
    """
    end_unknown(folder, frozenset())
    shutil.rmtree(folder, ignore_errors=True)


def end_unknown(folder: Path, known: Collection[str]) -> None:
    """End every kernel that works below ``folder``, except in the folders ``known``."""
    for _ in range(_ROUNDS):
        pids = _kernels(folder, known)
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


def _kernels(folder: Path, known: Collection[str] = ()) -> list[int]:
    mark = f"{MARK}={folder}/".encode()
    passed_over = {f"{MARK}={session}".encode() for session in known}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "environ").read_bytes().split(b"\0")
            if any(word.startswith(mark) and word not in passed_over for word in words):
                found.append(int(process.name))
    return found
