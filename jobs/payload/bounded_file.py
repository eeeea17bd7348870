"""Read untrusted files: regular files only, up to a limit, without following links."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import BinaryIO

TEXT_BYTES_MAX = 4 << 20
"""The default limit: settings, job files, tokens and model shapes that people write are much smaller."""
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_regular(path: Path | str, flags: int = _FLAGS, folder: int | None = None) -> BufferedReader:
    """Return a regular file, opened for reading; ``folder`` is an open folder to which ``path`` is relative.

    Links are followed. Raises OSError: ENXIO for a device, a pipe, a socket, or a file of the kernel that reports no
    size, because reading them could block or never end.
    """
    descriptor = os.open(path, flags, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode) or (not status.st_size and _has_content(descriptor)):
            raise OSError(errno.ENXIO, "not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _has_content(descriptor: int) -> bool:
    """Return whether a file has content but still reports size 0; a writer may have filled it since the first check."""
    try:
        return bool(os.pread(descriptor, 1, 0)) and not os.fstat(descriptor).st_size
    except OSError as error:
        return error.errno == errno.EAGAIN  # a read would wait for content


def read_bounded(path: Path, bytes_max: int = TEXT_BYTES_MAX) -> bytes:
    """Return the bytes of a regular file. Raises what open_regular raises, and OSError EFBIG beyond ``bytes_max``."""
    with open_regular(path) as stream:
        data = stream.read(bytes_max + 1)
    if data is None:  # a file of /proc that would block
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
    if len(data) > bytes_max:
        raise OSError(errno.EFBIG, f"larger than {bytes_max:,} bytes", str(path))
    return data


# Plain files below a folder that other processes write to: links are not followed, pipes and devices are refused.
# Each part of the path is opened relative to the folder before it, so that no other process can replace it.
# Error numbers of an entry that is neither a plain file nor a folder: a link, a pipe, a socket, a device.
ODD = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.EISDIR})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@contextmanager
def folder_below(root: Path, relative: str, *, make: bool = False) -> Iterator[int]:
    """Yield a descriptor of a folder below ``root``, without following links; ``make`` creates it. Raises OSError."""
    current = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in PurePosixPath(relative).parts:
            inner = _open_folder(current, part, make=make)
            os.close(current)
            current = inner
        yield current
    finally:
        os.close(current)


def _open_folder(parent: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            raise
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        pass  # another process has created it
    else:
        os.fsync(parent)
    return os.open(name, _FOLDER, dir_fd=parent)


def open_in(folder: int, name: str) -> BinaryIO:
    """Open the plain file ``name`` of an open folder. Raises OSError; anything else has an error number of ODD."""
    return open_regular(name, _FILE, folder)


def open_below(root: Path, relative: str) -> BinaryIO:
    """Open a plain file below ``root``. Raises OSError; anything else has an error number of ODD."""
    path = PurePosixPath(relative)
    with folder_below(root, str(path.parent)) as folder:
        return open_in(folder, path.name)


def read_below(root: Path, relative: str, limit_bytes: int = 1 << 20) -> bytes:
    """Return the content of a plain file below ``root``. Raises OSError, EFBIG beyond ``limit_bytes``."""
    with open_below(root, relative) as stream:
        data = stream.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise OSError(errno.EFBIG, f"longer than {limit_bytes} bytes", relative)
    return data
