"""Training data: the corpus and each job's mixture of it, made when first needed and named by content."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scheduler.service.faults.isolation import why
from scheduler.service.outside.calls import fail, tell
from scheduler.store import jobs
from scheduler.store.errors import StoreFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jobs.corpus import CorpusManifest, Progress
    from jobs.spec import Mixture
    from platforms.artifacts.base import BlobStore
    from scheduler.core.plan import Placement
    from scheduler.service.outside.ports import Ports
    from scheduler.store.engine import Database

_POINTER = "current.json"
_READ_PERCENT, _CLUSTER_FROM_PERCENT, _WRITE_FROM_PERCENT = 70, 75, 80  # of a build's time, about
_STEP_PERCENT = 5


def _share(done: int, total: int) -> int:
    return min(99, 100 * done // max(1, total)) // _STEP_PERCENT * _STEP_PERCENT


def _bytes_of(source: str, max_bytes: int) -> int:
    path = Path(source).expanduser()
    if source == "stdlib" or path.is_file():
        return max_bytes if source == "stdlib" else path.stat().st_size
    return sum((Path(folder) / name).lstat().st_size for folder, _, names in os.walk(path) for name in names)


@dataclass(frozen=True, slots=True)
class CorpusRecipe:
    """What the corpus is made of.

    ``sources`` are ``stdlib`` (at most ``max_bytes`` of it), files or folders; ``domains`` are keyword lists.
    """

    sources: tuple[str, ...]
    held_out_fraction: float
    max_bytes: int
    domains: Mapping[str, Sequence[str]]
    held_out_clusters: int = 0
    rules: tuple[Mapping[str, Any], ...] = ()  # the fields of a jobs.corpus.Rule each

    def fingerprint(self) -> str:
        """Return a text that is equal for equal recipes."""
        return json.dumps(
            {
                **asdict(self),
                "sources": sorted(self.sources),
                "domains": {name: sorted(words) for name, words in self.domains.items()},
            },
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
        self._prefixes: dict[tuple[str, Mixture, int], str] = {}
        self._manifest: CorpusManifest | None = None
        self._lock = threading.Lock()

    def prefix(self, job: str) -> str:
        """Return the store prefix of a job's data, making corpus and mixture when they are missing.

        It is empty for a job without a mixture, for which nothing is made.

        May take hours, and tells how far it is. What a crash cut short is begun anew, and what is there is used.
        Raises CorpusError for sources nothing can be made of, OSError when the disk is full, StoreError, UnknownJob.
        """
        with self._database.read() as tx:
            spec = jobs.get(tx, job).spec
        if (wanted := spec.mixture) is None:
            return ""
        from jobs import corpus  # only where data are at hand: it costs a daemon's start

        key = (job, wanted, spec.seed)
        if key in self._prefixes:  # also while those of another job are made
            return self._prefixes[key]
        tell("waits for data of another job")
        with self._lock:
            if key not in self._prefixes:
                made = corpus.mixture(self._current(), job, wanted.domain, wanted.extra_share, seed=spec.seed)
                self._copy(made.folder)
                self._prefixes[key] = made.folder.relative_to(self._root).as_posix()
            return self._prefixes[key]

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
            held_out_wanted=self._recipe.held_out_clusters,
            options=corpus.Options(rules=tuple(corpus.Rule(**rule) for rule in self._recipe.rules)),
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
            found = sorted(path for path in folder.rglob("*") if path.is_file())
            for index, path in enumerate(found):
                tell(f"copies files to the store, {_share(index, len(found))} % of them")
                self._store.create(path.relative_to(self._root).as_posix(), path)

    def _telling(self) -> Callable[[Progress], None]:
        """Return what tells how far a build is: it reads for most of its time, and its sources' bytes are known."""
        tell("looks at the sources")
        total = sum(_bytes_of(source, self._recipe.max_bytes) for source in self._recipe.sources)
        parts = {
            "reading": (0, _READ_PERCENT, total),
            "tagging": (_READ_PERCENT, _CLUSTER_FROM_PERCENT, 0),
            "clustering": (_CLUSTER_FROM_PERCENT, _WRITE_FROM_PERCENT, 0),
            "writing": (_WRITE_FROM_PERCENT, 100, 0),
        }

        def progress(found: Progress) -> None:
            begin, end, whole = parts[found.phase]
            done = found.bytes_read if found.phase == "reading" else found.documents
            percent = begin + (end - begin) * _share(done, whole or found.total or 0) // 100
            tell(f"{found.phase} the corpus, {percent // _STEP_PERCENT * _STEP_PERCENT} % done")

        return progress

    def _current(self) -> CorpusManifest:
        if self._manifest is not None:
            return self._manifest
        folder = self._root / "corpus"
        try:
            pointer = json.loads((folder / _POINTER).read_text())
        except FileNotFoundError:
            pointer = {}
        if pointer.get("recipe") != self._recipe.fingerprint():
            return self.build(self._telling())
        from jobs.corpus import open_corpus

        self._manifest = open_corpus(folder / str(pointer["version"]))
        return self._manifest


def with_data(ports: Ports, due: Sequence[Placement]) -> list[Placement]:
    """Return what has its training data before quota is set aside; those of the others are made meanwhile."""
    names = sorted({planned_lane.job for placement in due for planned_lane in placement.lanes})
    made = ports.calls.gather("data", {name: partial(_make_data, ports, name) for name in names})
    return [placement for placement in due if all(made.get(planned_lane.job) for planned_lane in placement.lanes)]


def _make_data(ports: Ports, job: str) -> bool:
    try:
        ports.data_prefix(job)
    except StoreFailure:
        raise
    except Exception as error:  # noqa: BLE001 - whatever is wrong with data, sessions of others are launched
        ports.log.error("corpus.unavailable", job=job, why=str(error))
        fail(why(error))
        return False
    return True
