"""The payload's log: lines on standard error, which every platform keeps, with secrets redacted."""

import os
import sys

from .redact import Redactor

hidden = Redactor()
"""Replaces the secrets of this process's jobs in its output; ``hidden.know`` sets them."""


def log(lane: int | None, message: str) -> None:
    """Write one line, with the number of the lane; None is for the agent itself."""
    where = "agent" if lane is None else f"agent lane {lane}"
    write(sys.stderr.fileno(), f"[{where}] {hidden(message)}\n".encode(errors="replace"))


def write(descriptor: int, data: bytes) -> bool:
    """Write bytes to a descriptor; return False on failure, since a full disk or closed pipe must not end training."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        return False
    return True
