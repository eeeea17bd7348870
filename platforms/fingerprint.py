"""Fingerprints: whether small files, such as those with credentials, are what they were at the last look."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterable
from pathlib import Path

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
        found = path.stat()
        told = f"{found.st_mode} {found.st_uid} {found.st_gid}"
        if stat.S_ISREG(found.st_mode) and found.st_size <= _BYTES_MAX:
            return f"{told} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError as error:
        return f"errno {error.errno}"
    return f"{told} {found.st_ino} {found.st_size} {found.st_mtime_ns}"
