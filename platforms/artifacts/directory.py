"""The blob store in a folder of this machine, or on a disk that several machines mount.

New objects are created atomically, see jobs/payload/whole_file.py. Sessions write here as well, so the store ignores
everything except plain files, and follows no links.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobs.payload.bounded_file import ODD, folder_below, open_below
from jobs.payload.whole_file import TEMPORARY, create_below, replace_below, size_in
from platforms.artifacts.base import Grant, Missing, StoreError, StoreUnreachable, check_key, check_prefix, is_key

_FULL = {errno.ENOSPC, errno.EDQUOT}
_NO_FILE = {errno.ENOENT, *ODD}  # the path does not exist or is not a plain file
_WRITES = {"create", "write"}


def load(root: Path, options: Mapping[str, str]) -> "DirectoryStore":
    """Return the store in the folder ``root``. It has no options. Raises StoreError, StoreUnreachable."""
    if options:
        why = f"unknown: {', '.join(sorted(options))}"
        raise StoreError("open", "artifacts.options", why, "Remove them: a store in a folder has no options")
    return DirectoryStore(root)


class DirectoryStore:
    """Objects as files below ``root``; a key is the file's path. Any number of processes may share it."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        with self._translate("open", str(self._root)):
            self._root.mkdir(mode=0o750, parents=True, exist_ok=True)

    def create(self, key: str, source: Path | bytes) -> bool:
        """Write ``key`` unless it exists; return whether this call wrote it.

        Raises StoreError, also if ``source`` is missing or the key's path is not a plain file, and StoreUnreachable.
        """
        check_key("create", key)
        with self._translate("create", key):
            if isinstance(source, Path) and not source.is_file():
                raise StoreError("create", key, f"the source file {source} does not exist")
            return create_below(self._root, key, source)

    def put(self, key: str, data: bytes) -> None:
        """Write or replace a small object. Raises StoreError, StoreUnreachable; the old value then stays."""
        check_key("write", key)
        with self._translate("write", key):
            replace_below(self._root, key, data)

    def read(self, key: str, limit_bytes: int = 1 << 24) -> bytes:
        """Return an object's bytes. Raises Missing, and StoreError when it is larger than ``limit_bytes``."""
        check_key("read", key)
        with self._translate("read", key), open_below(self._root, key) as stream:
            data = stream.read(limit_bytes + 1)
        if len(data) > limit_bytes:
            raise StoreError("read", key, f"it is larger than {limit_bytes} bytes")
        return data

    def fetch(self, key: str, target: Path) -> None:
        """Copy an object into the file ``target``, which is created atomically. Raises Missing, StoreError."""
        check_key("fetch", key)
        with self._translate("fetch", key), open_below(self._root, key) as source:
            target.parent.mkdir(parents=True, exist_ok=True)
            replace_below(target.parent, target.name, source)

    def size(self, key: str) -> int | None:
        """Return an object's size in bytes, or None if it does not exist."""
        parent, name = _split("measure", key)
        try:
            with self._translate("measure", key), folder_below(self._root, parent) as folder:
                return size_in(folder, name)
        except Missing:
            return None

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with ``prefix``, sorted. ``prefix`` ends with '/' or is empty."""
        check_prefix(prefix)
        with self._translate("list", prefix):
            self._root.stat()  # an unmounted disk must not look like an empty store
            try:
                with folder_below(self._root, prefix) as folder:
                    entries = list(_walk(folder, prefix))
            except OSError as error:
                if error.errno not in _NO_FILE:
                    raise
                entries = []
        yield from sorted(entries)

    def delete(self, key: str) -> bool:
        """Remove an object; return whether it existed."""
        parent, name = _split("delete", key)
        try:
            with self._translate("delete", key), folder_below(self._root, parent) as folder:
                os.unlink(name, dir_fd=folder)
                os.fsync(folder)
        except Missing:
            return False
        return True

    def payload_address(self, grant: Grant) -> dict[str, Any]:
        """Return the ``store`` part of the launch contract; the session may see nothing beyond this."""
        writes = [f"runs/{grant.run}", *(f"jobs/{job}" for job in grant.jobs)]
        return {"kind": "directory", "root": str(self._root), "reads": [*grant.reads, *grant.folders], "writes": writes}

    def sweep(self, older_than: float) -> int:
        """Remove temporary files last changed before ``older_than`` (real UTC seconds); return how many.

        Writers that were killed leave them behind. An active writer changes its file all the time, so it is safe to
        remove files that are a day old.
        """
        removed = 0
        with self._translate("sweep", str(self._root)):
            for _, _, names, folder in os.fwalk(self._root):
                for name in names:
                    try:
                        if name.startswith(TEMPORARY) and _changed(folder, name) < older_than:
                            os.unlink(name, dir_fd=folder)
                            removed += 1
                    except FileNotFoundError:
                        continue  # its writer has just finished
        return removed

    @contextmanager
    def _translate(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                raise StoreError(action, key, str(error), "Make room on that disk") from error
            if not self._root.is_dir():
                raise StoreUnreachable(action, key, f"{self._root} is gone", "Check the mount") from error
            if action in _WRITES and (error.errno in ODD or isinstance(error, FileExistsError)):
                why = "its path is not a plain file, or a part of the path is already the key of an object"
                raise StoreError(action, key, why, f"Look at {self._root}") from error
            if error.errno in _NO_FILE:
                raise Missing(action, key, "there is no such object") from error
            raise StoreUnreachable(action, key, str(error), f"Check {self._root}") from error


def _split(action: str, key: str) -> tuple[str, str]:
    """Return the folder and the name of a key. Raises StoreError for an invalid key."""
    check_key(action, key)
    parent, _, name = key.rpartition("/")
    return parent, name


def _changed(folder: int, name: str) -> float:
    return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime


def _walk(folder: int, prefix: str) -> Iterator[str]:
    """Yield the keys of the plain files in an open folder and below it; skip names that are not valid keys."""
    with os.scandir(folder) as entries:
        names = [
            (entry.name, entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False)) for entry in entries
        ]
    for name, is_folder, is_plain in names:
        if not is_key(f"{prefix}{name}"):
            continue
        if is_plain:
            yield prefix + name
        elif is_folder:
            try:
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            except OSError as error:
                if error.errno in _NO_FILE:
                    continue  # removed or replaced meanwhile
                raise
            try:
                yield from _walk(inner, f"{prefix}{name}/")
            finally:
                os.close(inner)
