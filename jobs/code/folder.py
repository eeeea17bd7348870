"""A folder as it stands: the names that belong to a job's code, and their bytes, never through a link."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from jobs.code.errors import CodeError
from jobs.payload.store.listing import CODE_LIMITS, Kind

# Besides hidden ones: folders that tools fill, and that a session would have to make anew anyway.
GENERATED = frozenset({"__pycache__", "node_modules", "venv", "site-packages"})
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


def plain_names(folder: Path, leaves_out: Callable[[str], bool]) -> set[bytes]:
    """Return the names below a folder without git: everything but hidden and generated ones. Raises CodeError."""
    found: set[bytes] = set()
    try:
        for name in _walk(folder, leaves_out):
            found.add(name)
            if len(found) > CODE_LIMITS.files:
                raise too_many(folder)
    except OSError as error:
        why = f"it cannot be read: {error.strerror}: {error.filename!a}"
        raise CodeError(str(folder), why, "Name it in .schedignore if no session needs it") from None
    return found


def too_many(folder: Path) -> CodeError:
    """Say that a folder has more files than a job's code may have."""
    remedy = "Name what no session needs in .schedignore, or give a folder that holds the code alone"
    return CodeError(str(folder), f"it has more than {CODE_LIMITS.files:,} files", remedy)


def read(folder: Path, name: bytes, bytes_max: int) -> tuple[Kind, bytes] | None:
    """Return what stands under a name, and its bytes; None when nothing does, or only behind a link.

    ``file``, ``program`` or ``link``, whose bytes are its target. Raises CodeError for anything else, or when it is
    longer than ``bytes_max``.
    """
    *parents, last = name.split(b"/")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        place = os.open(folder, flags | os.O_DIRECTORY)
        try:
            for parent in parents:
                inner = os.open(parent, flags | os.O_DIRECTORY, dir_fd=place)
                os.close(place)
                place = inner
            found = os.stat(last, dir_fd=place, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                return "link", os.readlink(last, dir_fd=place)
            if not stat.S_ISREG(found.st_mode):
                raise _odd(folder, name)
            # It may have been exchanged since: a pipe must not be waited for.
            with os.fdopen(os.open(last, flags | os.O_NONBLOCK, dir_fd=place), "rb") as stream:
                found = os.fstat(stream.fileno())
                if not stat.S_ISREG(found.st_mode):
                    raise _odd(folder, name)
                # Asked for as much as it may be, the library would make room for all of that, for each file.
                data = b"" if found.st_size > bytes_max else stream.read(found.st_size + 1)
                if len(data) > found.st_size:  # it grew since
                    data += stream.read(bytes_max + 1)
        finally:
            os.close(place)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        why = f"{os.fsdecode(name)!a} cannot be read: {error.strerror}"
        raise CodeError(str(folder), why, "Name it in .schedignore if no session needs it") from None
    if found.st_size > bytes_max or len(data) > bytes_max:
        why = f"with {os.fsdecode(name)!a} ({found.st_size:,} bytes) it is too large"
        raise CodeError(str(folder), why, "Name data, weights and results in .schedignore: they are no code")
    return ("program" if found.st_mode & stat.S_IXUSR else "file"), data


def _odd(folder: Path, name: bytes) -> CodeError:
    why = f"{os.fsdecode(name)!a} is a device, a socket or a pipe"
    return CodeError(str(folder), why, "Name it in .schedignore if no session needs it")


def _walk(folder: Path, leaves_out: Callable[[str], bool]) -> Iterator[bytes]:
    waiting = [b""]
    while waiting:
        prefix = waiting.pop()
        with os.scandir(os.fsencode(folder) + b"/" + prefix) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        if prefix and (b"pyvenv.cfg", False) in found:
            continue  # an environment, whatever its name
        for last, is_folder in found:
            name = prefix + last
            generated = os.fsdecode(last) in GENERATED or last.endswith(b".pyc")
            if last.startswith(b".") or generated or leaves_out(os.fsdecode(name)):
                continue
            if is_folder:
                waiting.append(name + b"/")
            else:
                yield name
