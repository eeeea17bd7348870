"""Records of sessions: small JSON files that outlive their writers, each read whole and of its types, or not at all.

A record that is damaged tells nothing of its own session, and says nothing about any other.
"""

from __future__ import annotations

import errno
import hashlib
import stat
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from jobs.payload.bounded_file import ODD, read_below
from platforms.base import Observed, SessionState

_Record = TypeVar("_Record")
_adapter: Any = cache(TypeAdapter)  # to look at the types of a record takes longer than to read it
# What is wrong with this one file, and not with the disk or with us.
_OWN_FAULTS = ODD | {errno.EFBIG, errno.EACCES, errno.EPERM, errno.EIO}


class DamagedRecord(ValueError):
    """A record that is there and cannot be read, or is not what it should be."""


def read_record(root: Path, relative: str, kind: type[_Record]) -> _Record | None:
    """Return the value of ``kind``, a dataclass most often, that a JSON file below ``root`` holds; None without one.

    Raises DamagedRecord for this file's own fault, OSError when the disk gives no answer.
    """
    try:
        record: _Record = _adapter(kind).validate_json(read_below(root, relative), strict=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _OWN_FAULTS:
            raise
        raise DamagedRecord(f"{root / relative} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"{part}: " for part in first["loc"])
        raise DamagedRecord(f"{root / relative} is damaged: {where}{first['msg']}") from error
    return record


def unclear(key: str, why: object) -> Observed:
    """Return that the state of one session is unknown, and why."""
    return Observed(key, SessionState.UNCLEAR, "", detail=str(why))


# What a file holds, to notice that it has changed.
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
