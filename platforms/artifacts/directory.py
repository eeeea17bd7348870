"""The blob store in a folder of this machine, or of a disk that several machines mount.

A new object is written to a temporary file in the folder it will live in, synced, and linked to its name: a
link is atomic and fails when the name exists, so two writers never mix and a reader never sees a part. The
folder is synced last, because a name that a power cut can take back is no checkpoint.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from platforms.artifacts.base import Missing, StoreError, StoreFull, StoreUnreachable
from platforms.artifacts.keys import check_key, check_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from platforms.artifacts.base import Grant

_TEMPORARY = ".tmp-"  # no key can begin with a dot
_FULL = {errno.ENOSPC, errno.EDQUOT}
_CLASHES = (FileExistsError, IsADirectoryError, NotADirectoryError)
_WRITES = {"create", "write"}
_PIECE_BYTES = 1 << 20


def load(root: Path, options: Mapping[str, str]) -> DirectoryStore:
    """Return the store in the folder ``root``. It has no options. Raises StoreError, StoreUnreachable."""
    if options:
        raise StoreError("open", "artifacts.options", f"unknown: {', '.join(sorted(options))}", "A folder has none")
    return DirectoryStore(root)


class DirectoryStore:
    """Objects as files below ``root``; a key is the file's path. Any number of processes may share it."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        with self._translate("open", str(self._root)):
            self._root.mkdir(parents=True, exist_ok=True)

    def create(self, key: str, source: Path | bytes) -> bool:
        """Write ``key`` unless it exists; return whether this call did.

        Raises StoreFull, StoreUnreachable, and StoreError when ``source`` is not there.
        """
        path = self._path("create", key)
        with self._translate("create", key):
            if isinstance(source, Path) and not source.is_file():
                raise StoreError("create", key, f"there is no file {source} to take it from")
            if path.is_file():
                _sync_folder(path.parent)  # whoever wrote it may have died just before this
                return False
            with self._written(path, source) as temporary:
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    if path.is_dir():
                        raise
                    return False
                finally:
                    _sync_folder(path.parent)
        return True

    def put(self, key: str, data: bytes) -> None:
        """Write or replace a small object. Raises StoreFull, StoreUnreachable; the old value stays then."""
        path = self._path("write", key)
        with self._translate("write", key), self._written(path, data) as temporary:
            temporary.replace(path)
            _sync_folder(path.parent)

    def read(self, key: str, limit_bytes: int = 1 << 24) -> bytes:
        """Return an object's bytes. Raises Missing, and StoreError when it is larger than ``limit_bytes``."""
        path = self._path("read", key)
        with self._translate("read", key), path.open("rb") as stream:
            data = stream.read(limit_bytes + 1)
        if len(data) > limit_bytes:
            raise StoreError("read", key, f"it is larger than {limit_bytes} bytes")
        return data

    def fetch(self, key: str, target: Path) -> None:
        """Copy an object into the file ``target``, which appears when complete. Raises Missing, StoreFull."""
        path = self._path("fetch", key)
        with (
            self._translate("fetch", key),
            path.open("rb") as source,
            self._written(target.absolute(), source) as copy,
        ):
            copy.replace(target)

    def size(self, key: str) -> int | None:
        """Return an object's size in bytes, or None when there is none."""
        path = self._path("measure", key)
        try:
            with self._translate("measure", key):
                found = path.stat()
                return found.st_size if stat.S_ISREG(found.st_mode) else None
        except Missing:
            return None

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with ``prefix``, sorted. ``prefix`` ends with '/' or is empty."""
        check_prefix(prefix)
        with self._translate("list", prefix):
            self._root.stat()  # an unmounted disk must not look like an empty store
            found = list(_walk(self._root / prefix, prefix))
        yield from sorted(found)

    def delete(self, key: str) -> bool:
        """Remove an object; return whether there was one."""
        path = self._path("delete", key)
        try:
            with self._translate("delete", key):
                path.unlink()
                _sync_folder(path.parent)
        except Missing:
            return False
        return True

    def payload_address(self, grant: Grant) -> dict[str, Any]:
        """Return the ``store`` part of the launch contract; a folder is open to whoever is on its machine."""
        del grant
        return {"kind": "directory", "root": str(self._root)}

    def sweep(self, older_than: float) -> int:
        """Remove temporary files last changed before ``older_than`` (real UTC seconds); return how many.

        They are left by writers that were killed. A writer at work changes its file all the time, so an age
        of a day is safe.
        """
        removed = 0
        with self._translate("sweep", str(self._root)):
            for folder, _, names in os.walk(self._root):
                for name in names:
                    path = Path(folder, name)
                    try:
                        if name.startswith(_TEMPORARY) and path.stat().st_mtime < older_than:
                            path.unlink()
                            removed += 1
                    except FileNotFoundError:
                        continue  # its writer has just finished
        return removed

    def _path(self, action: str, key: str) -> Path:
        check_key(action, key)
        return self._root / key

    @contextmanager
    def _written(self, path: Path, source: Path | bytes | BinaryIO) -> Iterator[Path]:
        """Yield a synced temporary file beside ``path`` with the content of ``source``, then remove it."""
        self._root.stat()  # do not build the store anew on the mount point of a disk that is gone
        _make_folder(path.parent)
        temporary = path.parent / f"{_TEMPORARY}{os.getpid()}-{threading.get_ident()}-{os.urandom(4).hex()}"
        try:
            with temporary.open("xb") as stream:
                match source:
                    case bytes():
                        stream.write(source)
                    case Path():
                        with source.open("rb") as original:
                            shutil.copyfileobj(original, stream, _PIECE_BYTES)
                    case _:
                        shutil.copyfileobj(source, stream, _PIECE_BYTES)
                stream.flush()
                os.fsync(stream.fileno())
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    @contextmanager
    def _translate(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                raise StoreFull(action, key, str(error), "Make room on that disk") from error
            if not self._root.is_dir():
                raise StoreUnreachable(action, key, f"{self._root} is gone", "Check the mount") from error
            if action in _WRITES and isinstance(error, _CLASHES):
                raise StoreError(action, key, "another key has it as a folder, or is a part of it") from error
            if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
                raise Missing(action, key, "there is no such object") from error
            raise StoreUnreachable(action, key, str(error), f"Check {self._root}") from error


def _walk(folder: Path, prefix: str) -> Iterator[str]:
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), f"{prefix}{entry.name}/")
        elif entry.is_file(follow_symlinks=False):
            yield prefix + entry.name


def _make_folder(folder: Path) -> None:
    """Make a folder and its parents, each synced into the folder above it."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
