"""The folder of corpora: versions, the current version, and sources added by hand."""

import fcntl
import heapq
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from jobs.corpus.errors import CorpusDamaged, NoSuchVersion
from jobs.corpus.manifest import MANIFEST_BYTES_MAX, MANIFEST_NAME, CorpusManifest, open_corpus, rows_of
from jobs.corpus.read.sources import label_of
from jobs.payload.bounded_file import read_bounded
from jobs.payload.bounds import read_json
from jobs.payload.whole_file import write_whole

_ID = itemgetter(0)
_VERSION = re.compile(r"[0-9a-f]{16}")
_POINTER = "current.json"
_SOURCES = "sources.json"
_GOING = ".going-"
_REMEDY = "remove this file, add sources again that were added by hand, and build: schedctl corpus build"


@dataclass(frozen=True, slots=True)
class Current:
    """The version for new jobs, the recipe that it was built from, and the version before it."""

    version: str = ""
    recipe: str = ""
    before: str = ""


class CorpusFolder:
    """Corpora below `root`, each in a folder named by its version."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def current(self) -> Current:
        """Return the current version; empty if there is none. Raises CorpusDamaged."""
        path = self.root / _POINTER
        pointer = _read(path)
        if pointer is None:
            return Current()
        if not isinstance(pointer, dict):
            raise CorpusDamaged(path, "no JSON object", _REMEDY)
        return Current(**{name: str(pointer.get(name, "")) for name in Current.__slots__})

    def make_current(self, version: str, recipe: str) -> None:
        """Make this version current for new jobs."""
        old = self.current()
        before = old.before if old.version == version else old.version
        write_whole(self.root / _POINTER, json.dumps(asdict(Current(version, recipe, before))))

    def kept(self) -> set[str]:
        """Return the versions to keep even if no job uses them: the current one, and the one before it."""
        current = self.current()
        return {current.version, current.before} - {""}

    def versions(self) -> list[str]:
        """Return all versions, newest first; equal times are sorted by name."""
        manifests = []
        for path in self.root.glob(f"*/{MANIFEST_NAME}"):
            if _VERSION.fullmatch(path.parent.name):
                with suppress(FileNotFoundError):  # deleted meanwhile
                    manifests.append((-path.stat().st_mtime, path.parent.name))
        return [name for _, name in sorted(manifests)]

    def find(self, beginning: str) -> str:
        """Return the only version with this prefix. Raises NoSuchVersion if there is none or more than one."""
        known_versions = self.versions()
        matches = [version for version in known_versions if version.startswith(beginning)]
        if not beginning or len(matches) != 1:
            raise NoSuchVersion(beginning, matches or known_versions)
        return matches[0]

    def open(self, version: str, *, verify: bool = False) -> CorpusManifest:
        """Open a version. Raises NoSuchVersion, CorpusDamaged."""
        if not version or not (self.root / version / MANIFEST_NAME).is_file():
            raise NoSuchVersion(version, self.versions())
        return open_corpus(self.root / version, verify=verify)

    def added(self) -> tuple[str, ...]:
        """Return the sources added by hand, in order. Raises CorpusDamaged."""
        path = self.root / _SOURCES
        sources = _read(path)
        if sources is None:
            return ()
        if not isinstance(sources, list) or not all(isinstance(source, str) for source in sources):
            raise CorpusDamaged(path, "no list of sources", _REMEDY)
        return tuple(sources)

    def change_added(self, add: Sequence[str] = (), drop: Sequence[str] = ()) -> tuple[str, ...]:
        """Add and remove sources; return the remaining ones."""
        with self.locked("sources"):
            kept = [source for source in dict.fromkeys((*self.added(), *add)) if source not in drop]
            write_whole(self.root / _SOURCES, json.dumps(kept))
        return tuple(kept)

    @contextmanager
    def locked(self, what: str, waits: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold an exclusive lock among all processes; calls ``waits`` before waiting for it."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / f".{what}.lock").open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waits()
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def delete(self, version: str) -> None:
        """Delete a version atomically; may be repeated. Raises OSError."""
        if not _VERSION.fullmatch(version):
            return
        going = self.root / f"{_GOING}{version}"
        if (self.root / version).exists() and not going.exists():
            (self.root / version).rename(going)
        if going.exists():
            shutil.rmtree(going)


def _read(path: Path) -> Any:
    """Return the JSON value of a file; None if it does not exist."""
    try:
        return read_json(read_bounded(path, MANIFEST_BYTES_MAX))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CorpusDamaged(path, f"not JSON ({error})", _REMEDY) from error


class _Text(NamedTuple):
    id: str
    counts: dict[str, int]  # by source, of the texts that only this one's version has
    is_held_out: bool
    tags: Any
    source: str


@dataclass(slots=True)
class Difference:
    """The differences of two versions: counts of texts, and changed parameters as (old, new).

    `added` and `removed` count by source. `now_trained` and `now_held_out` changed sides: a model that was trained on
    the old version measures too well on these. `retagged` have another stage or other domains.
    """

    old: str
    new: str
    same: int = 0
    added: dict[str, int] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    now_trained: int = 0
    now_held_out: int = 0
    retagged: int = 0
    parameters: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


def difference(old: CorpusManifest, new: CorpusManifest) -> Difference:
    """Compare two versions text by text, without holding them in memory. Raises CorpusDamaged."""
    names = sorted({*old.parameters, *new.parameters})
    pairs = {name: (old.parameters.get(name), new.parameters.get(name)) for name in names}
    changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    compared = Difference(old.version, new.version, parameters=changed)
    both = heapq.merge(_texts(old, compared.removed), _texts(new, compared.added), key=_ID)
    for _, texts in groupby(both, key=_ID):
        was, *others = texts
        if not others:
            label = label_of(was.source)
            was.counts[label] = was.counts.get(label, 0) + 1
            continue
        (now,) = others
        compared.same += 1
        compared.retagged += was.tags != now.tags
        compared.now_trained += was.is_held_out and not now.is_held_out
        compared.now_held_out += now.is_held_out and not was.is_held_out
    return compared


def _texts(manifest: CorpusManifest, counts: dict[str, int]) -> Iterator[_Text]:
    """Yield all texts, sorted by ID, as the files are."""
    held_out = ((row, True) for row in rows_of(manifest.folder, manifest.held_out))
    trained = ((row, False) for shard in manifest.train for row in rows_of(manifest.folder, shard))
    for row, is_held_out in heapq.merge(trained, held_out, key=lambda pair: str(pair[0]["id"])):
        yield _Text(row["id"], counts, is_held_out, (row["stage"], row["domains"]), row["source"])
