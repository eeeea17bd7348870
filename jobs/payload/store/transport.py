"""Where checkpoints and reports go: a small port, and the folder that implements it.

Everything is asked for by key, nothing is listed, so that a transport made of presigned URLs can stand in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

from ..whole_file import create_below, replace_below
from .manifest import sha256_file

PIECE_BYTES = 1 << 20


def pour(pieces: Iterable[bytes], sink: BinaryIO | None = None) -> str:
    """Write pieces to ``sink``, if there is one; return the sha256 (hex) of all of them."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        if sink is not None:
            sink.write(piece)
    return digest.hexdigest()


class Fetches(Protocol):
    """The part of a store that trees are fetched with."""

    def fetch(self, key: str, target: Path) -> str:
        """See Transport.fetch."""


class Transport(Protocol):
    """A store of immutable objects and a few overwritten documents, under ``/``-separated keys.

    Every method may be called again after any failure. A missing object raises FileNotFoundError, trouble with the
    store or the local disk any other OSError. Every call ends in bounded time; two threads may call at once.
    """

    def read(self, key: str) -> bytes:
        """Return a small document whole."""

    def fetch(self, key: str, target: Path) -> str:
        """Copy an object into a new local file; return the sha256 (hex) of what was written."""

    def publish_new(self, key: str, source: Path | bytes) -> bool:
        """Create an object, durably and all at once; False, with nothing changed, when the key is taken."""

    def put(self, key: str, source: Path | bytes, *, durable: bool = True) -> None:
        """Create or replace an object all at once; without ``durable`` a power cut may undo or empty it."""

    def exists(self, key: str) -> bool:
        """Return whether the key is taken."""

    def verify(self, key: str, sha256: str) -> bool:
        """Return whether the object is there with exactly this content."""

    def folder(self, prefix: str) -> Path:
        """Return a local folder that holds the objects under a prefix; may be the store's own: read only."""


class DirectoryTransport:
    """A folder on a file system this machine can see; keys are paths below it."""

    def __init__(self, root: Path, given_root: Path | None = None) -> None:
        """``given_root`` is a second folder, only read, for objects that are not to lie in ``root``."""
        self._root = root
        self._beside = given_root

    def read(self, key: str) -> bytes:
        """See Transport."""
        return self._path(key).read_bytes()

    def fetch(self, key: str, target: Path) -> str:
        """See Transport."""
        place = self._path(key)
        if self._beside is not None and not place.exists():
            place = self._beside.joinpath(*PurePosixPath(key).parts)
        with place.open("rb") as source, target.open("xb") as sink:
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
