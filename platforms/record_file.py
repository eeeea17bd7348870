"""Read the records of sessions, small JSON files. A record has all fields with their types, or counts as damaged.

A damaged record makes only the state of its own session unknown.
"""

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
_adapter: Any = cache(TypeAdapter)  # creating a validator takes longer than reading a record
# Errors that concern this one file, not the disk or our code.
_OWN_FAULTS = ODD | {errno.EFBIG, errno.EACCES, errno.EPERM, errno.EIO}


class DamagedRecord(ValueError):
    """The record exists, but cannot be read or has the wrong content."""


def read_record(root: Path, relative: str, kind: type[_Record]) -> _Record | None:
    """Return the value of ``kind``, usually a dataclass, in a JSON file below ``root``; None if there is no file.

    Raises DamagedRecord for a fault of this file, OSError if the disk does not answer.
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
    """Return a session whose state is unknown, with the reason as its detail."""
    return Observed(key, SessionState.UNCLEAR, "", detail=str(why))


# Fingerprints of files, to notice changes.
_BYTES_MAX = 1 << 16  # a larger file cannot be a credential, so its size and time suffice


def fingerprint(paths: Iterable[Path]) -> str:
    """Return a text that changes with the files' content, their permissions, and whether they exist.

    It depends on the content, not the time: a file that was replaced within one tick of the disk's clock is noticed,
    and one that was only touched is not. Only regular files are read, because reading a pipe would block.
    """
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path}\0{_file_state(path)}\0".encode())
    return digest.hexdigest()


def _file_state(path: Path) -> str:
    try:
        status = path.stat()
        owner = f"{status.st_mode} {status.st_uid} {status.st_gid}"
        if stat.S_ISREG(status.st_mode) and status.st_size <= _BYTES_MAX:
            return f"{owner} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError as error:
        return f"errno {error.errno}"
    return f"{owner} {status.st_ino} {status.st_size} {status.st_mtime_ns}"
