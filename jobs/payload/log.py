"""The payload's log: lines on standard error, which every platform keeps."""

from __future__ import annotations

import os
import sys


def log(lane: int | None, message: str) -> None:
    """Write one line."""
    where = "agent" if lane is None else f"agent lane {lane}"
    write(sys.stderr.fileno(), f"[{where}] {message}\n".encode(errors="replace"))


def write(descriptor: int, data: bytes) -> bool:
    """Write bytes to the log; False when it takes no more. A full disk or a closed pipe must not end training."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        return False
    return True
