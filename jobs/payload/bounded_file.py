"""Read a file of somebody else whole: a regular file only, and never more than a limit."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

TEXT_BYTES_MAX = 4 << 20
"""Enough for settings, jobs, tokens and model shapes: whatever a person writes or reads."""
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_bounded(path: Path, bytes_max: int = TEXT_BYTES_MAX) -> bytes:
    """Return the bytes of a regular file, which a link may name.

    Raises OSError: EINVAL for a device, a pipe or a socket, which could block or never end, and EFBIG beyond
    ``bytes_max``.
    """
    descriptor = os.open(path, _FLAGS)
    with os.fdopen(descriptor, "rb") as stream:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        data = stream.read(bytes_max + 1)
    if data is None:  # one of /proc that would have us wait
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
    if len(data) > bytes_max:
        raise OSError(errno.EFBIG, f"larger than {bytes_max:,} bytes", str(path))
    return data
