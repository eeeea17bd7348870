"""Bring home what a session left: names, sizes and contents are hostile until shown otherwise."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.checkpoint import BadManifest, parse_manifest, sha256_file
from platforms.base import Refused, Unreachable
from platforms.kaggle.wire import Denied

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from platforms.artifacts.base import BlobStore
    from platforms.kaggle.client import Client

_STORE = "store/"
_BLOB = re.compile(r"jobs/([A-Za-z0-9][A-Za-z0-9._-]*)/blobs/([0-9a-f]{64})")
_MANIFEST = re.compile(r"jobs/([A-Za-z0-9][A-Za-z0-9._-]*)/manifests/\d{12}-\d{6}\.json")
_REPORT = re.compile(r"runs/([a-z0-9-]+)/lane-\d{1,3}/(heartbeat|result)\.json")
_PAGES_MAX = 100


@dataclass(frozen=True, slots=True)
class Caps:
    """What is taken from one session. ``seconds`` bounds the download of one file."""

    files: int = 5_000
    file_bytes: int = 8 << 30
    total_bytes: int = 20 << 30
    report_bytes: int = 1 << 20
    seconds: float = 3_600.0


class Collector:
    """Imports the outputs of the launch ``key``, whose lanes train ``jobs``, into a store."""

    def __init__(self, client: Client, key: str, jobs: Collection[str], caps: Caps) -> None:
        self._client = client
        self._key = key
        self._jobs = frozenset(jobs)
        self._caps = caps
        self._total_bytes = 0

    def collect(self, slug: str, store: BlobStore) -> int:
        """Import everything that is ours to take; return how many objects there were.

        Blobs come first, then manifests, then reports: whoever sees a later one can rely on the earlier. Raises
        Unreachable to be tried again, Refused when what was left breaks a limit, StoreError, OSError.
        """
        wanted = self._wanted(slug)
        with tempfile.TemporaryDirectory(prefix="uff-kaggle-") as folder:
            for number, (key, url) in enumerate(wanted):
                self._take(key, url, Path(folder) / str(number), store)
        return len(wanted)

    def _wanted(self, slug: str) -> Sequence[tuple[str, str]]:
        found: dict[str, str] = {}
        seen, page = 0, ""
        for _ in range(_PAGES_MAX):
            output = self._client.output(slug, page)
            if output is None:
                return ()
            for name, url in output.files:
                seen += 1
                key = name.removeprefix(_STORE)
                if name.startswith(_STORE) and self._rank(key) is not None:
                    found[key] = url
            if seen > self._caps.files:
                raise Refused("kaggle", "collect", f"{slug} left more than {self._caps.files} files", permanent=True)
            page = output.next_page
            if not page:
                break
        return sorted(found.items(), key=lambda entry: (self._rank(entry[0]) or 0, entry[0]))

    def _rank(self, key: str) -> int | None:
        """Return in which turn an object is imported; None for what is not ours to take."""
        if match := _BLOB.fullmatch(key):
            return 0 if match[1] in self._jobs else None
        if match := _MANIFEST.fullmatch(key):
            return 1 if match[1] in self._jobs else None
        if match := _REPORT.fullmatch(key):
            return 2 if match[1] == self._key else None
        return None

    def _take(self, key: str, url: str, file: Path, store: BlobStore) -> None:
        rank = self._rank(key)
        limit = self._caps.file_bytes if rank == 0 else self._caps.report_bytes
        if rank == 0 and store.size(key) is not None:
            return
        limit = min(limit, self._caps.total_bytes - self._total_bytes)
        try:
            self._client.download(url, file, limit, self._caps.seconds)
        except Denied as error:
            if error.status == 413:
                raise Refused("kaggle", "collect", f"{key}: {error}", permanent=True) from None
            # Signed addresses expire while a long list is worked off; the next try lists anew.
            raise Unreachable("kaggle", "collect", f"{key}: {error}") from None
        self._total_bytes += file.stat().st_size
        if self._sound(key, file):
            store.create(key, file)
        file.unlink()

    def _sound(self, key: str, file: Path) -> bool:
        """Tell whether content is what its name promises; what is not is left where it is."""
        if self._rank(key) == 0:
            return sha256_file(file) == key.rpartition("/")[2]
        if self._rank(key) == 1:
            try:
                parse_manifest(key, file.read_bytes())
            except BadManifest:
                return False
        return True
