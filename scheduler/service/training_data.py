"""Training data: the corpus and each job's mixture of it, made when first needed and named by content."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.store import jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from jobs.corpus import CorpusManifest, Progress
    from platforms.artifacts.base import BlobStore
    from scheduler.store.engine import Database

_POINTER = "current.json"


@dataclass(frozen=True, slots=True)
class CorpusRecipe:
    """What the corpus is made of.

    ``sources`` are ``stdlib`` (at most ``max_bytes`` of it), files or folders; ``domains`` are keyword lists.
    """

    sources: tuple[str, ...]
    held_out_fraction: float
    max_bytes: int
    domains: Mapping[str, Sequence[str]]

    def fingerprint(self) -> str:
        """Return a text that is equal for equal recipes."""
        return json.dumps(
            [sorted(self.sources), self.held_out_fraction, self.max_bytes, {k: [*v] for k, v in self.domains.items()}],
            sort_keys=True,
        )


class TrainingData:
    """Mixtures below ``root/corpus``.

    Payloads read them in place when ``root`` is the folder of a directory store; else they are copied to ``store``.
    """

    def __init__(self, root: Path, recipe: CorpusRecipe, database: Database, store: BlobStore | None = None) -> None:
        self._root = root
        self._store = store
        self._recipe = recipe
        self._database = database
        self._prefixes: dict[str, str] = {}
        self._manifest: CorpusManifest | None = None
        self._lock = threading.Lock()
        # Called again and again while data are made, because that may take longer than a watchdog waits for a cycle.
        self.on_progress: Callable[[], None] = lambda: None

    def prefix(self, job: str) -> str:
        """Return the store prefix of a job's data, making corpus and mixture when they are missing.

        Raises CorpusError for sources nothing can be made of, OSError when the disk is full, StoreError, UnknownJob.
        """
        from jobs import corpus  # only where data are at hand: it costs a daemon's start

        with self._lock:
            if job not in self._prefixes:
                with self._database.read() as tx:
                    spec = jobs.get(tx, job).spec
                made = corpus.mixture(
                    self._current(), spec.name, spec.mixture.domain, spec.mixture.extra_share, seed=spec.seed
                )
                self._copy(made.folder)
                self._prefixes[job] = made.folder.relative_to(self._root).as_posix()
            return self._prefixes[job]

    def build(self, progress: Callable[[Progress], None] = lambda _progress: None) -> CorpusManifest:
        """Build the corpus from its sources, even when one is there, and make it the current one."""
        from jobs import corpus

        folder = self._root / "corpus"
        folder.mkdir(parents=True, exist_ok=True)
        self._manifest = corpus.build(
            [
                corpus.Stdlib(self._recipe.max_bytes) if source == "stdlib" else corpus.parse_source(source)
                for source in self._recipe.sources
            ],
            folder,
            self._recipe.domains,
            held_out_fraction=self._recipe.held_out_fraction,
            progress=progress,
        )
        pointer = {"version": self._manifest.version, "recipe": self._recipe.fingerprint()}
        fresh = folder / f"{_POINTER}.new"
        fresh.write_text(json.dumps(pointer))
        fresh.replace(folder / _POINTER)
        return self._manifest

    def _copy(self, folder: Path) -> None:
        """Put a mixture into the store, if that is elsewhere. Its name tells its content, so once is enough."""
        if self._store is not None:
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                self._store.create(path.relative_to(self._root).as_posix(), path)
                self.on_progress()

    def _current(self) -> CorpusManifest:
        if self._manifest is not None:
            return self._manifest
        folder = self._root / "corpus"
        try:
            pointer = json.loads((folder / _POINTER).read_text())
        except FileNotFoundError:
            pointer = {}
        if pointer.get("recipe") != self._recipe.fingerprint():
            return self.build(lambda _progress: self.on_progress())
        from jobs.corpus import open_corpus

        self._manifest = open_corpus(folder / str(pointer["version"]))
        return self._manifest
