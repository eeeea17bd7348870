"""SageMaker's checkpoint syncer, with its traps: what our adapter does not use, and what others' training scripts do.

It restores whatever begins with the prefix, neighbours included; uploads file by file in no order; deletes in S3 what
is deleted locally; leaves marker files beside yours; and need not upload what is written after SIGTERM.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

_UPLOADING, _UPLOADED, _IGNORED = ".sagemaker-uploading", ".sagemaker-uploaded", ".sagemaker-ignore"
_OWN = (_UPLOADING, _UPLOADED, _IGNORED)


class Files(Protocol):
    """The part of S3 that the syncer needs."""

    def copy(self, uri: str, folder: Path) -> int:
        """Copy all objects whose names begin with an S3 address into a folder."""
        ...

    def put(self, uri: str, data: bytes) -> None:
        """Write an object."""
        ...

    def delete(self, uri: str) -> None:
        """Remove an object, if it is there."""
        ...


class Syncer:
    """Keeps ``folder`` and what lies at ``uri`` alike, every ``wall_seconds``, between ``start`` and ``stop``."""

    def __init__(self, files: Files, uri: str, folder: Path, wall_seconds: float) -> None:
        self._files = files
        self._uri = uri if uri.endswith("/") else f"{uri}/"
        self._prefix = uri
        self._folder = folder
        self._wall_seconds = wall_seconds
        self._known: dict[str, tuple[int, int]] = {}  # name -> size and time of change when it was last uploaded
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoint syncer", daemon=True)

    def restore(self) -> None:
        """Bring everything that begins with the address; a prefix without '/' at its end matches its neighbours."""
        self._files.copy(self._prefix, self._folder)
        self._known = self._seen()

    def start(self) -> None:
        """Begin to look at the folder."""
        self._thread.start()

    def stop(self, *, last: bool) -> None:
        """Look no more; once more before, with ``last``."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        if last:
            self.sync()

    def sync(self) -> None:
        """Upload what is new or changed, then delete what is gone."""
        seen = self._seen()
        for name, version in seen.items():
            if self._known.get(name) != version:
                with suppress(FileNotFoundError):  # it went away meanwhile, as files of training scripts do
                    self._upload(name)
                    self._known[name] = version
        for name in sorted(set(self._known) - set(seen)):
            self._files.delete(f"{self._uri}{name}")
            del self._known[name]

    def _upload(self, name: str) -> None:
        path = self._folder / name
        marker = path.with_name(path.name + _UPLOADING)
        marker.touch()
        try:
            self._files.put(f"{self._uri}{name}", path.read_bytes())
        finally:
            marker.unlink(missing_ok=True)
        path.with_name(path.name + _UPLOADED).touch()

    def _seen(self) -> dict[str, tuple[int, int]]:
        found = {}
        for path in self._folder.rglob("*"):
            with suppress(FileNotFoundError):
                if path.is_file() and not path.name.endswith(_OWN):
                    stat = path.stat()
                    found[path.relative_to(self._folder).as_posix()] = (stat.st_size, stat.st_mtime_ns)
        return found

    def _run(self) -> None:
        while not self._over.wait(self._wall_seconds):
            self.sync()
