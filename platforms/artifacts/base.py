"""The interface of a blob store, which holds checkpoints, heartbeats and results.

Keys are relative paths of plain ASCII with '/' as the separator.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol, cast

from jobs.problem import UserError

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,199}){0,15}", re.ASCII)

PREFIX = re.compile(f"({_KEY.pattern}/)?", re.ASCII)
"""Matches a prefix of keys: nothing, or a key followed by one '/'."""


class StoreError(UserError):
    """Base of all store errors; ``action`` and ``key`` say what failed, ``remedy`` what to do next."""

    def __init__(self, action: str, key: str, why: str, remedy: str = "") -> None:
        super().__init__(f"artifact store: cannot {action} {key}", why, remedy)
        self.action = action
        self.key = key


class Missing(StoreError):
    """The key does not exist."""


class StoreUnreachable(StoreError):
    """No reliable answer; a write may or may not have happened, and repeating it is safe."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The access of one session to the store for ``lasts_seconds`` of real time.

    It may write below ``runs/<run>/`` and below ``jobs/<job>/`` for its ``jobs``, and read the keys ``reads`` and all
    objects below the prefixes ``folders`` (without a '/' at the end).
    """

    run: str
    jobs: tuple[str, ...]
    reads: tuple[str, ...]
    folders: tuple[str, ...]
    lasts_seconds: int


class BlobStore(Protocol):
    """All writes are atomic: a reader sees the old value, the new one or none, never a part."""

    def create(self, key: str, source: Path | bytes) -> bool:
        """Write ``key`` unless it exists; return whether this call wrote it. Idempotent."""

    def put(self, key: str, data: bytes) -> None:
        """Write or replace a small object. Idempotent."""

    def read(self, key: str, limit_bytes: int = 1 << 24) -> bytes:
        """Return an object's bytes. Raises Missing, and StoreError when it is larger than ``limit_bytes``."""

    def fetch(self, key: str, target: Path) -> None:
        """Copy an object into the file ``target``, which is created atomically. Raises Missing."""

    def size(self, key: str) -> int | None:
        """Return an object's size in bytes, or None if it does not exist."""

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with ``prefix``, sorted. ``prefix`` ends with '/' or is empty."""

    def delete(self, key: str) -> bool:
        """Remove an object; return whether it existed."""

    def sweep(self, older_than: float) -> int:
        """Remove the remains of writes interrupted before ``older_than`` (real UTC seconds); return how many.

        Never removes an object that has a key. Raises StoreError.
        """

    def payload_address(self, grant: Grant) -> dict[str, Any]:
        """Return the ``store`` part of the launch contract: the address by which a session uses ``grant``.

        Plain JSON types without long-lived secrets. A store that cannot restrict access grants all access. Raises
        StoreError.
        """


def check_key(action: str, key: str) -> None:
    """Raise StoreError unless ``key`` is a valid key."""
    if not _KEY.fullmatch(key):
        raise StoreError(action, repr(key), "a key consists of words of A-Z a-z 0-9 . _ - joined by '/'")


def check_prefix(prefix: str) -> None:
    """Raise StoreError unless ``prefix`` is valid."""
    if not PREFIX.fullmatch(prefix):
        raise StoreError("list", prefix, "a prefix is empty, or a key followed by one '/'")


def is_key(key: str) -> bool:
    """Return whether a name in the store is a valid key; other programs may store objects with any name."""
    return bool(_KEY.fullmatch(key))


Loader = Callable[[Path, Mapping[str, str]], BlobStore]

# The function with the signature Loader of each kind of store, as "module:function".
_LOADERS = {"directory": "platforms.artifacts.directory:load", "s3": "platforms.artifacts.s3.store:load"}


def open_store(kind: str, root: Path, options: Mapping[str, str]) -> BlobStore:
    """Open a store of a kind; ``root`` is a folder on this machine for its files.

    Raises StoreError for an unknown kind, an invalid option or a missing library.
    """
    address = _LOADERS.get(kind)
    if address is None:
        raise StoreError("open", kind, "there is no such kind of store", f"Known kinds: {', '.join(sorted(_LOADERS))}")
    return cast("Loader", resolve_name(address))(root, options)
