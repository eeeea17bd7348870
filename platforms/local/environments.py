"""The environments that sessions of a pool share on this machine, and which of them go."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from jobs.payload.lane.environment import FOLDER, MARK

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FOLDER", "KEPT_SECONDS", "sweep_environments"]
KEPT_SECONDS = 14 * 86_400  # real time since a session last began with it


def sweep_environments(folder: Path, before: float) -> list[str]:
    """Remove what no session has begun with since ``before`` (real UTC seconds), and what nobody finished building.

    What a session runs from, or builds, is locked and stays. Returns the names. Raises OSError.
    """
    removed = []
    for place in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not place.is_dir():
            continue
        handle = os.open(folder / f"{place.name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mark = place / MARK
                if not mark.exists() or mark.stat().st_mtime < before:
                    mark.unlink(missing_ok=True)  # first: what is half removed is no environment
                    shutil.rmtree(place)
                    removed.append(place.name)
        finally:
            os.close(handle)
    return removed
