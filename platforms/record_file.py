"""Records of sessions: small JSON files that outlive their writers, each read whole and of its types, or not at all.

A record that is damaged tells nothing of its own session, and says nothing about any other.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from platforms.base import Observed, SessionState
from platforms.plain_file import ODD, read_below

_Record = TypeVar("_Record")
# What is wrong with this one file, and not with the disk or with us.
_OWN_FAULTS = ODD | {errno.EFBIG, errno.EACCES, errno.EPERM, errno.EIO}


class DamagedRecord(ValueError):
    """A record that is there and cannot be read, or is not what it should be."""


def read_record(root: Path, relative: str, build: Callable[[Any], _Record]) -> _Record | None:
    """Return what ``build`` makes of a JSON file below ``root``, a dataclass most often; None when there is none.

    Raises DamagedRecord for this file's own fault, OSError when the disk gives no answer.
    """
    try:
        record = build(json.loads(read_below(root, relative)))
        _check(record)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _OWN_FAULTS:
            raise
        raise DamagedRecord(f"{root / relative} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DamagedRecord(f"{root / relative} is damaged: {error}") from error
    return record


def unclear(key: str, error: DamagedRecord) -> Observed:
    """Return that the state of one session is unknown, and why."""
    return Observed(key, SessionState.UNCLEAR, "", detail=str(error))


@cache
def _types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)  # which compiles them again each time


def _check(record: object) -> None:
    made_of: Any = type(record)
    for name, kind in _types(made_of).items():
        if not _fits(getattr(record, name), kind):
            raise ValueError(f"{name} is of another type")


def _fits(value: object, kind: Any) -> bool:
    parts = get_args(kind)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_fits(item, parts[0]) for item in value)
    if get_origin(kind) is Literal:
        return value in parts
    if parts:
        return any(_fits(value, part) for part in parts)
    if kind in {int, float}:
        return isinstance(value, int | kind) and not isinstance(value, bool)
    return isinstance(value, kind)
