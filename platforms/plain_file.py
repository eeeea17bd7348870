"""Plain files below a folder that others write to as well: no link leads out of it, and no pipe or device holds us up.

Every part of the way is opened on its own, from the folder before it, so that no other process can change it meanwhile.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

_BYTES_MAX = 1 << 16  # more is no credential, and is judged by its size and time alone
# What says that something stands there, but no plain file or folder: a link, a pipe, a socket, a device.
ODD = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.EISDIR})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


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


@contextmanager
def folder_below(root: Path, relative: str, *, make: bool = False) -> Iterator[int]:
    """Yield a descriptor of a folder below ``root``, which may be a link itself; nothing below it is followed.

    With ``make``, what is missing is made, and synced into the folder above it. Raises OSError.
    """
    current = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in PurePosixPath(relative).parts:
            inner = _opened(current, part, make=make)
            os.close(current)
            current = inner
        yield current
    finally:
        os.close(current)


def _opened(folder: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        pass  # somebody else was faster
    else:
        os.fsync(folder)
    return os.open(name, _FOLDER, dir_fd=folder)


def open_in(folder: int, name: str) -> BinaryIO:
    """Open the plain file ``name`` of an open folder. Raises OSError, with a number of ODD for anything else."""
    descriptor = os.open(name, _FILE, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENXIO, "this is no plain file", name)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_below(root: Path, relative: str) -> BinaryIO:
    """Open a plain file below ``root``. Raises OSError, with a number of ODD for anything else."""
    way = PurePosixPath(relative)
    with folder_below(root, str(way.parent)) as folder:
        return open_in(folder, way.name)


def write_whole(path: Path, text: str, *, sync: bool = False) -> None:
    """Write a file so that a crash leaves the old one or the new one; with ``sync``, also where the power fails."""
    fresh = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    with fresh.open("x") as stream:
        stream.write(text)
        if sync:
            stream.flush()
            os.fsync(stream.fileno())
    fresh.replace(path)


def read_below(root: Path, relative: str, limit_bytes: int = 1 << 20) -> bytes:
    """Return what a plain file below ``root`` holds. Raises OSError, also when it is longer."""
    with open_below(root, relative) as stream:
        data = stream.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise OSError(errno.EFBIG, f"this is longer than {limit_bytes} bytes", relative)
    return data
