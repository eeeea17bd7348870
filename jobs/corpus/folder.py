"""The folder that holds all corpora: their versions, the current version, and the sources that people added by hand."""

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
_DELETED = ".going-"  # prefix of a version that is being deleted
_REMEDY = "Delete this file, add the sources again that were added by hand, and run `schedctl corpus build`"


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
        """Add and remove sources that people add by hand; return all that remain, in order."""
        with self.locked("sources"):
            kept = [source for source in dict.fromkeys((*self.added(), *add)) if source not in drop]
            write_whole(self.root / _SOURCES, json.dumps(kept))
        return tuple(kept)

    @contextmanager
    def locked(self, what: str, waits: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Hold the lock ``what`` against all other processes; call ``waits`` first if another process holds it."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / f".{what}.lock").open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waits()
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def delete(self, version: str) -> None:
        """Delete a version: rename its folder, then delete that. A repeated call completes it. Raises OSError."""
        if not _VERSION.fullmatch(version):
            return
        deleted = self.root / f"{_DELETED}{version}"
        if (self.root / version).exists() and not deleted.exists():
            (self.root / version).rename(deleted)
        if deleted.exists():
            shutil.rmtree(deleted)


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
    only_here: dict[str, int]  # counts by source of the texts that only this text's version has
    is_held_out: bool
    tags: Any
    source: str


@dataclass(slots=True)
class Difference:
    """The differences of two versions: counts of texts, and changed parameters as (old, new).

    `added` and `removed` count by source. `now_trained` texts were held out before. `now_held_out` texts were training
    text before, so a model of the old version measures too well on them. `retagged`: other stage or domains.
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
        before, *others = texts
        if not others:
            label = label_of(before.source)
            before.only_here[label] = before.only_here.get(label, 0) + 1
            continue
        (after,) = others
        compared.same += 1
        compared.retagged += before.tags != after.tags
        compared.now_trained += before.is_held_out and not after.is_held_out
        compared.now_held_out += after.is_held_out and not before.is_held_out
    return compared


def _texts(manifest: CorpusManifest, only_here: dict[str, int]) -> Iterator[_Text]:
    """Yield all texts of a version sorted by ID. Its files are sorted by ID too."""
    held_out = ((row, True) for row in rows_of(manifest.folder, manifest.held_out))
    trained = ((row, False) for shard in manifest.train for row in rows_of(manifest.folder, shard))
    for row, is_held_out in heapq.merge(trained, held_out, key=lambda pair: str(pair[0]["id"])):
        yield _Text(row["id"], only_here, is_held_out, (row["stage"], row["domains"]), row["source"])
