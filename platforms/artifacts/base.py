"""The blob store port: where checkpoints, heartbeats and results live.

Keys are '/'-separated, relative and plain ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol, cast

from jobs.problem import UserError

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,199}){0,15}", re.ASCII)

PREFIX = re.compile(f"({_KEY.pattern}/)?", re.ASCII)
"""What keys may begin with: nothing, or a key followed by one '/'."""


class StoreError(UserError):
    """Base of all store errors; ``action`` and ``key`` say what failed, ``remedy`` what to do next."""

    def __init__(self, action: str, key: str, why: str, remedy: str = "") -> None:
        super().__init__(f"artifact store: cannot {action} {key}", why, remedy)
        self.action = action
        self.key = key


class Missing(StoreError):
    """There is no such key."""


class StoreUnreachable(StoreError):
    """No trustworthy answer; a write may or may not have happened, and repeating it is safe."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What one session may do in the store for ``lasts_seconds`` of real time.

    It may write below ``runs/<run>/`` and below ``jobs/<job>/`` for its ``jobs``, and read the keys ``reads`` and
    all objects below the prefixes ``folders`` (without a '/' at their ends).
    """

    run: str
    jobs: tuple[str, ...]
    reads: tuple[str, ...]
    folders: tuple[str, ...]
    lasts_seconds: int


class BlobStore(Protocol):
    """All writes are atomic: a reader sees the old value, the new one, or nothing, never a part."""

    def create(self, key: str, source: Path | bytes) -> bool:
        """Write ``key`` unless it exists; return whether this call wrote it. May be repeated."""

    def put(self, key: str, data: bytes) -> None:
        """Write or replace a small object. May be repeated."""

    def read(self, key: str, limit_bytes: int = 1 << 24) -> bytes:
        """Return an object's bytes. Raises Missing, and StoreError when it is larger than ``limit_bytes``."""

    def fetch(self, key: str, target: Path) -> None:
        """Copy an object into the file ``target``, which appears only when complete. Raises Missing."""

    def size(self, key: str) -> int | None:
        """Return an object's size in bytes, or None when there is none."""

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with ``prefix``, sorted. ``prefix`` ends with '/' or is empty."""

    def delete(self, key: str) -> bool:
        """Remove an object; return whether there was one."""

    def sweep(self, older_than: float) -> int:
        """Remove what writers left that were cut off before ``older_than`` (real UTC seconds); return how many.

        Nothing that has a key is touched. Raises StoreError.
        """

    def payload_address(self, grant: Grant) -> dict[str, Any]:
        """Return the ``store`` part of the launch contract: how a session reaches what ``grant`` names.

        Plain JSON types, free of long-lived secrets. A store that cannot narrow access hands out what it has.
        Raises StoreError.
        """


def check_key(action: str, key: str) -> None:
    """Raise StoreError unless ``key`` is a key."""
    if not _KEY.fullmatch(key):
        raise StoreError(action, repr(key), "a key is plain words of A-Z a-z 0-9 . _ - joined by '/'")


def check_prefix(prefix: str) -> None:
    """Raise StoreError unless ``prefix`` is one."""
    if not PREFIX.fullmatch(prefix):
        raise StoreError("list", prefix, "a prefix is empty, or a key followed by one '/'")


def is_key(key: str) -> bool:
    """Return whether what somebody else may have put into the store has a name of ours."""
    return bool(_KEY.fullmatch(key))


Loader = Callable[[Path, Mapping[str, str]], BlobStore]

# kind -> "module:function" with the signature Loader.
_LOADERS: Mapping[str, str] = {
    "directory": "platforms.artifacts.directory:load",
    "s3": "platforms.artifacts.s3.store:load",
}


def open_store(kind: str, root: Path, options: Mapping[str, str]) -> BlobStore:
    """Return the store of a kind; ``root`` is a folder of this machine that belongs to it.

    Raises StoreError for an unknown kind, a bad option or a missing library.
    """
    address = _LOADERS.get(kind)
    if address is None:
        raise StoreError("open", kind, "there is no such kind of store", f"Known kinds: {', '.join(sorted(_LOADERS))}")
    return cast("Loader", resolve_name(address))(root, options)
