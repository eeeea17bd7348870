"""The transport to the artifact store: its interface, and the implementation on a folder.

Objects are accessed by key and never listed, so that a store of presigned URLs can implement the interface too.
"""

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from ..whole_file import create_below, replace_below
from .manifest import sha256_file

PIECE_BYTES = 1 << 20


def pour(pieces: Iterable[bytes], sink: BinaryIO | None = None) -> str:
    """Write pieces to ``sink`` if one is given; return the SHA-256 (hex) of all pieces."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        if sink is not None:
            sink.write(piece)
    return digest.hexdigest()


class Fetches(Protocol):
    """The part of a transport that the download of trees needs."""

    def fetch(self, key: str, target: Path) -> str:
        """See Transport.fetch."""


class Transport(Protocol):
    """A store of immutable objects and a few overwritten documents, under ``/``-separated keys.

    All methods are idempotent and thread-safe, and end in bounded time. A missing object raises FileNotFoundError, a
    failure of the store or the local disk another OSError.
    """

    def read(self, key: str) -> bytes:
        """Return the content of a small document."""

    def fetch(self, key: str, target: Path) -> str:
        """Copy an object to a new local file; return the SHA-256 (hex) of its content."""

    def publish_new(self, key: str, source: Path | bytes) -> bool:
        """Create an object atomically and durably; return False, changing nothing, if the key exists."""

    def put(self, key: str, source: Path | bytes, *, durable: bool = True) -> None:
        """Create or replace an object atomically; without ``durable`` a power failure may undo this."""

    def exists(self, key: str) -> bool:
        """Return whether the key exists."""

    def verify(self, key: str, sha256: str) -> bool:
        """Return whether the object exists with exactly this content."""

    def folder(self, prefix: str) -> Path:
        """Return a local folder with the objects under a prefix. It may be the store itself: do not write to it."""


class DirectoryTransport:
    """A Transport on a folder of this machine; keys are paths below it."""

    def __init__(self, root: Path, given_root: Path | None = None) -> None:
        """``given_root`` is a second, read-only folder for objects that are not in ``root``."""
        self._root = root
        self._given_root = given_root

    def read(self, key: str) -> bytes:
        """See Transport."""
        return self._path(key).read_bytes()

    def fetch(self, key: str, target: Path) -> str:
        """See Transport."""
        path = self._path(key)
        if self._given_root is not None and not path.exists():
            path = self._given_root.joinpath(*PurePosixPath(key).parts)
        with path.open("rb") as source, target.open("xb") as sink:
            return pour(iter(lambda: source.read(PIECE_BYTES), b""), sink)

    def publish_new(self, key: str, source: Path | bytes) -> bool:
        """See Transport."""
        self._path(key)
        self._root.mkdir(parents=True, exist_ok=True)
        return create_below(self._root, key, source)

    def put(self, key: str, source: Path | bytes, *, durable: bool = True) -> None:
        """See Transport."""
        self._path(key)
        self._root.mkdir(parents=True, exist_ok=True)
        replace_below(self._root, key, source, durable=durable)

    def exists(self, key: str) -> bool:
        """See Transport."""
        return self._path(key).exists()

    def verify(self, key: str, sha256: str) -> bool:
        """See Transport."""
        with suppress(FileNotFoundError):
            return sha256_file(self._path(key)) == sha256
        return False

    def folder(self, prefix: str) -> Path:
        """See Transport."""
        path = self._path(prefix)
        if not path.is_dir():
            raise FileNotFoundError(f"{path} is not a folder of the store")
        return path

    def _path(self, key: str) -> Path:
        """Return the path of an object. Raises ValueError for an invalid key."""
        parts = PurePosixPath(key).parts
        if not parts or key.startswith("/") or ".." in parts:
            raise ValueError(f"{key!r} is not a key")
        return self._root.joinpath(*parts)
