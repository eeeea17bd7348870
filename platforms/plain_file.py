"""Files that are read up to a limit, and known by what they hold."""

from __future__ import annotations

import errno
import hashlib
import stat
from collections.abc import Iterable
from pathlib import Path

from jobs.payload.bounded_file import open_below

_BYTES_MAX = 1 << 16  # more is no credential, and is judged by its size and time alone


def fingerprint(paths: Iterable[Path]) -> str:
    """Return a word that changes with what the files hold, who may read them, and whether they are there.

    Their content counts and not their time: a file that was exchanged within one tick of the disk's clock is noticed,
    and one that was only touched is not. Only regular files are read: a pipe would wait for its other end.
    """
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path}\0{_look(path)}\0".encode())
    return digest.hexdigest()


def _look(path: Path) -> str:
    try:
        status = path.stat()
        owner = f"{status.st_mode} {status.st_uid} {status.st_gid}"
        if stat.S_ISREG(status.st_mode) and status.st_size <= _BYTES_MAX:
            return f"{owner} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError as error:
        return f"errno {error.errno}"
    return f"{owner} {status.st_ino} {status.st_size} {status.st_mtime_ns}"


def read_below(root: Path, relative: str, limit_bytes: int = 1 << 20) -> bytes:
    """Return what a plain file below ``root`` holds. Raises OSError, also when it is longer."""
    with open_below(root, relative) as stream:
        data = stream.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise OSError(errno.EFBIG, f"this is longer than {limit_bytes} bytes", relative)
    return data
