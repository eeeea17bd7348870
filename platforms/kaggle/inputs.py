"""What a kernel is given: archives in private datasets that are named by content, shared by runs and never changed.

A dataset's slug is made of the digest of its one file, so a repeated or interrupted upload ends in the same dataset.
A deleted slug must not come back (later pushes were seen to fail), so each digest counts its generations.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from platforms.base import Refused
from platforms.relay import pack_objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from platforms.artifacts.base import BlobStore
    from platforms.kaggle.client import Client

_GENERATIONS_MAX = 100
_SLUG_DIGITS = 24
_OVER = {"DELETED", "FAILED"}


@dataclass(frozen=True, slots=True)
class Input:
    """One attached file: its name and digest, the dataset that holds it, and where it is unpacked."""

    dataset: str
    name: str
    sha256: str
    into: str

    def order(self) -> dict[str, str]:
        """Return what the bootstrap program is told."""
        return {"name": self.name, "sha256": self.sha256, "into": self.into}


class Inputs:
    """The datasets of one account. ``folder`` keeps when each was last used (scheduled UTC seconds)."""

    def __init__(self, client: Client, folder: Path, prefix: str, ready_seconds: int, call_seconds: int) -> None:
        self._client = client
        self._folder = folder
        self._prefix = prefix
        self._ready_seconds = ready_seconds
        self._call_seconds = call_seconds
        self._turn = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def give_archive(self, archive: Path, kind: str, into: str, now: int) -> Input:
        """Make sure that a READY dataset holds the file ``archive``. Raises Refused, Unreachable, Denied, OSError."""
        with archive.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        name = f"{kind}-{sha256[:_SLUG_DIGITS]}.bin"  # Kaggle would unpack what it takes for an archive
        with self._turn:
            slug = self._ensure(archive, name, f"{self._prefix}-{kind}-{sha256[:_SLUG_DIGITS]}")
            self._note(slug, now)
        return Input(slug, name, sha256, into)

    def give_objects(self, store: BlobStore, keys: Sequence[str], kind: str, now: int) -> Input:
        """Give objects of a store, which the kernel finds under the same keys in its own."""
        with _temporary() as folder:
            archive = folder / "objects.tar"
            pack_objects(store, keys, archive)
            return self.give_archive(archive, kind, "store", now)

    def sweep(self, in_use: Iterable[str], now: int, keep_seconds: int) -> None:
        """Delete datasets that no session in ``in_use`` needs and that were last given ``keep_seconds`` ago."""
        kept = set(in_use)
        for path in sorted(self._folder.glob(f"{self._prefix}-*")):
            used_at = json.loads(path.read_bytes())["used_at"]
            if path.name not in kept and now - used_at > keep_seconds:
                self._client.delete_dataset(path.name)
                path.unlink()

    def _ensure(self, archive: Path, name: str, stem: str) -> str:
        for generation in range(_GENERATIONS_MAX):
            slug = f"{stem}-{generation}"
            status = self._client.dataset_status(slug)
            if status in _OVER:
                continue
            if status is None:
                token = self._client.upload(archive, name, self._call_seconds)
                wrong = self._client.create_dataset(slug, slug, [token])
                if wrong and "already in use" not in wrong.lower():
                    raise Refused("kaggle", "create a dataset", wrong)
            self._wait_ready(slug, status)
            return slug
        raise Refused("kaggle", "create a dataset", f"{stem} was deleted {_GENERATIONS_MAX} times", permanent=True)

    def _wait_ready(self, slug: str, status: str | None) -> None:
        """Wait until a dataset can be attached; right after its creation Kaggle does not even admit to have it."""
        patience, waited, pause = threading.Event(), 0.0, 0.05
        while status != "READY":
            if status in _OVER or waited > self._ready_seconds:
                raise Refused(
                    "kaggle", "prepare a dataset", f"{slug} is {status or 'not visible'} after {waited:.0f} s"
                )
            patience.wait(pause)
            waited, pause = waited + pause, min(10.0, pause * 1.5)
            status = self._client.dataset_status(slug)

    def _note(self, slug: str, now: int) -> None:
        temporary = self._folder / f".{slug}.{os.urandom(4).hex()}"
        temporary.write_text(json.dumps({"used_at": now}))
        temporary.replace(self._folder / slug)


@contextmanager
def _temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="uff-kaggle-") as folder:
        yield Path(folder)
