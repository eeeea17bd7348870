"""Folders that appear whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = ".building-"


@contextmanager
def staging(parent: Path) -> Iterator[Path]:
    """Give a scratch folder inside `parent`, removed at the end; one at a time, others wait.

    What a killed predecessor left behind is swept first: while we hold the lock, no other scratch is live.
    """
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left_over in parent.glob(f"{_PREFIX}*"):
            shutil.rmtree(left_over)
        scratch = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def publish(folder: Path, target: Path) -> None:
    """Make a finished folder visible as `target`, on disk before it is seen."""
    for path in folder.iterdir():
        _sync(path)
    _sync(folder)
    folder.chmod(0o755)
    folder.rename(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
