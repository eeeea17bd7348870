"""Bring home what a session left: names, sizes and contents are hostile until shown otherwise."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from platforms.artifacts.base import BlobStore
from platforms.base import Refused, Unreachable
from platforms.kaggle.api.client import Client
from platforms.kaggle.api.wire import Denied, TooLarge
from platforms.relay import MANIFESTS, REPORTS, Intake, has_components

_STORE = "store/"
_PAGES_MAX = 100


@dataclass(frozen=True, slots=True)
class Caps:
    """What is taken from one session. ``seconds`` bounds the silence of one download, real."""

    files: int = 5_000
    file_bytes: int = 20 << 30
    total_bytes: int = 20 << 30
    report_bytes: int = 1 << 20
    seconds: float = 60.0


class Collector:
    """Imports the outputs of the launch ``key``, whose lanes train ``jobs``, into a store."""

    def __init__(self, client: Client, key: str, jobs: Collection[str], caps: Caps) -> None:
        self._client = client
        self._intake = Intake(key, frozenset(jobs))
        self._caps = caps
        self._total_bytes = 0

    def collect(self, slug: str, store: BlobStore, tell: Callable[[str], None]) -> None:
        """Import everything that is ours to take; ``tell`` hears how far it has come.

        Blobs come first, then manifests, then reports: whoever sees a later one can rely on the earlier. What comes
        damaged is left, and what does not rely on it is taken. Raises Unreachable to be tried again, Refused when what
        was left breaks a limit, StoreError, OSError.
        """
        wanted = self._wanted(slug)
        damaged: list[str] = []
        with tempfile.TemporaryDirectory(prefix="uff-kaggle-") as folder:
            for number, (key, url) in enumerate(wanted):
                tell(f"{number} of {len(wanted)} files are home, {self._total_bytes / 1e9:.2f} GB")
                if damaged and self._intake.rank(key) == REPORTS:
                    break  # last words are believed when all that they speak of is here
                if not self._take(key, url, Path(folder) / str(number), store):
                    damaged.append(key)
        if damaged:
            raise Unreachable(
                "kaggle", "collect", f"{len(damaged)} files came damaged or in part, the first is {damaged[0]}"
            )

    def _wanted(self, slug: str) -> Sequence[tuple[str, str]]:
        found: dict[str, str] = {}
        seen, page = 0, ""
        for _ in range(_PAGES_MAX):
            try:
                output = self._client.output(slug, page)
            except Denied as error:
                raise Refused("kaggle", "collect", f"what {slug} left: {error}", permanent=True) from None
            if output is None:
                raise Unreachable("kaggle", "collect", f"{slug} is over, and what it left is not shown")
            for name, url in output.files:
                seen += 1
                key = name.removeprefix(_STORE)
                if name.startswith(_STORE) and self._intake.rank(key) is not None:
                    found[key] = url
            if seen > self._caps.files:
                raise Refused("kaggle", "collect", f"{slug} left more than {self._caps.files} files", permanent=True)
            page = output.next_page
            if not page:
                break
        return [(key, found[key]) for key in self._intake.in_turn(found)]

    def _take(self, key: str, url: str, file: Path, store: BlobStore) -> bool:
        """Take one file home; False when it came damaged."""
        rank = self._intake.rank(key)
        limit = self._caps.file_bytes if rank == 0 else self._caps.report_bytes
        if rank == 0 and store.size(key) is not None:
            return True
        limit = min(limit, self._caps.total_bytes - self._total_bytes)
        try:
            self._client.download(url, file, limit, self._caps.seconds)
        except Denied as error:
            if isinstance(error, TooLarge):
                raise Refused("kaggle", "collect", f"{key}: {error}", permanent=True) from None
            # Signed addresses expire while a long list is worked off; the next try lists anew.
            raise Unreachable("kaggle", "collect", f"{key}: {error}") from None
        self._total_bytes += file.stat().st_size
        sound = self._intake.is_sound(key, file) and (rank != MANIFESTS or has_components(key, file, store))
        if sound:
            store.create(key, file)
        file.unlink()
        return sound
