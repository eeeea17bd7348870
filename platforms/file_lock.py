"""A lock between processes on an open file, waited for only so long: whoever holds it may hang."""

from __future__ import annotations

import fcntl
import threading
from typing import IO

_PAUSE_SECONDS = 0.02


def take(handle: IO[bytes], patience_seconds: float) -> None:
    """Take a file's exclusive lock; closing the file gives it back. Raises TimeoutError when somebody else keeps it."""
    pause = threading.Event()
    for _ in range(max(1, round(patience_seconds / _PAUSE_SECONDS))):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pause.wait(_PAUSE_SECONDS)
        else:
            return
    raise TimeoutError(f"another process holds {handle.name}")
