"""Records of sessions: small JSON files that outlive their writers, each read whole and of its types, or not at all.

A record that is damaged tells nothing of its own session, and says nothing about any other.
"""

from __future__ import annotations

import errno
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from jobs.payload.bounded_file import ODD
from platforms.base import Observed, SessionState
from platforms.plain_file import read_below

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


def unclear(key: str, error: DamagedRecord) -> Observed:
    """Return that the state of one session is unknown, and why."""
    return Observed(key, SessionState.UNCLEAR, "", detail=str(error))
