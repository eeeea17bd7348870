"""The manifest of a corpus (`corpus.json`), whose version is a digest of its content; its files; atomic publication."""

import fcntl
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jobs.corpus.errors import CorpusDamaged, reading
from jobs.payload import bounds
from jobs.payload.bounded_file import read_bounded
from jobs.payload.store.manifest import sha256_file, sync

FORMAT = 2
_READABLE_FORMATS = frozenset({1, FORMAT})  # corpora of older versions stay readable
MANIFEST_NAME = "corpus.json"
MANIFEST_BYTES_MAX = 64 << 20
FINDINGS_NAME = "findings.jsonl"
_ROW = frozenset({"id", "text", "stage", "domains", "source", "cluster"})


@dataclass(frozen=True, slots=True)
class CorpusManifest:
    """A finished corpus. All numbers describe its content; none depends on machine or time.

    The sources and `parameters` decide the content. `stages` and `domains` count rows by tag, `findings` by kind,
    `encodings` count decoded pieces. `near_duplicates` counts rows that share a cluster with an earlier row. The last
    three are empty in format 1: `shares` counts texts, bytes and held-out texts by `source`, `stage` or `domain` and
    then by name, `overlap` texts by pair of domains, `keywords` texts by domain and keyword.
    """

    folder: Path
    version: str
    train: "tuple[Shard, ...]"
    held_out: "Shard"
    parameters: Mapping[str, Any]
    documents_read: int
    duplicates: int
    clusters: int
    near_duplicates: int
    stages: Mapping[str, int]
    domains: Mapping[str, int]
    findings: Mapping[str, int]
    encodings: Mapping[str, int]
    held_out_clusters: int = 0
    shares: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    overlap: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    keywords: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of rows, training and held-out."""
        return sum(shard.rows for shard in (*self.train, self.held_out))

    @property
    def train_text_bytes(self) -> int:
        """UTF-8 bytes of training text, without the JSON around it."""
        return sum(shard.text_bytes for shard in self.train)

    @property
    def findings_path(self) -> Path:
        """The list of findings."""
        return self.folder / FINDINGS_NAME


def content_version(fields: Mapping[str, Any]) -> str:
    """Return 16 hex digits of the SHA-256 of a manifest without `version` and `encodings`."""
    content = {name: value for name, value in fields.items() if name not in {"version", "encodings"}}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()[:16]


def read_json(path: Path) -> dict[str, Any]:
    """Read a manifest. Raises CorpusDamaged if it is missing, unreadable, of another format, or was changed."""
    with reading(path, "not JSON"):
        fields = bounds.read_json(read_bounded(path, MANIFEST_BYTES_MAX))
    if not isinstance(fields, dict) or fields.get("format") not in _READABLE_FORMATS:
        raise CorpusDamaged(path, f"not of format {FORMAT} or older")
    if content_version(fields) != fields.get("version"):
        raise CorpusDamaged(path, "its content does not match its version")
    return fields


def rows_of(folder: Path, shard: "Shard") -> Iterator[dict[str, Any]]:
    """Yield the rows of a corpus file. Raises CorpusDamaged."""
    path = folder / shard.name
    with reading(path, "not rows of a corpus"), path.open("rb") as file:
        for line in file:
            row = bounds.read_json(line)
            if missing := _ROW.difference(row):
                raise ValueError(f"without {', '.join(sorted(missing))}")
            yield row


def publish_by_content(value: Any, file_format: int, folder: Path, file: str, parent: Path, prefix: str = "") -> Path:
    """Write manifest ``value`` to ``folder``; move that to ``parent``/``prefix`` + version, if new; return its path."""
    fields = {"format": file_format, **asdict(value)}
    del fields["folder"]
    fields["version"] = content_version(fields)
    target = parent / f"{prefix}{fields['version']}"
    if not target.exists():
        (folder / file).write_text(json.dumps(fields, indent=1, sort_keys=True) + "\n", encoding="ascii")
        publish(folder, target)
    return target


def open_corpus(folder: Path, *, verify: bool = False) -> CorpusManifest:
    """Open a built corpus; ``verify`` reads every file. Raises CorpusDamaged if manifest or file were changed."""
    fields = read_json(folder / MANIFEST_NAME)
    del fields["format"]
    fields["train"] = tuple(Shard(**shard) for shard in fields["train"])
    fields["held_out"] = Shard(**fields["held_out"])
    manifest = CorpusManifest(folder=folder, **fields)
    if verify:
        verify_shards(folder, (*manifest.train, manifest.held_out))
    return manifest


@dataclass(frozen=True, slots=True)
class Shard:
    """A file of a corpus or mixture: rows, size, and UTF-8 bytes of its texts."""

    name: str
    sha256: str
    rows: int
    bytes: int
    text_bytes: int


class ShardFile:
    """A file that is being written to `folder` row by row."""

    def __init__(self, folder: Path, name: str) -> None:
        self.bytes = 0
        self._name = name
        self._file = (folder / name).open("xb")
        self._digest = hashlib.sha256()
        self._rows = self._text_bytes = 0

    def write(self, row: bytes, text_bytes: int) -> None:
        """Append a row: a JSON object without line end, with `text_bytes` of text."""
        line = row + b"\n"
        self._file.write(line)
        self._digest.update(line)
        self._rows += 1
        self.bytes += len(line)
        self._text_bytes += text_bytes

    def finish(self) -> Shard:
        """Close the file and return its description."""
        self.close()
        return Shard(self._name, self._digest.hexdigest(), self._rows, self.bytes, self._text_bytes)

    def close(self) -> None:
        """Close the file in any state."""
        self._file.close()


def verify_shards(folder: Path, shards: Iterable[Shard]) -> None:
    """Raise CorpusDamaged for the first file that is missing or does not match its digest."""
    for shard in shards:
        path = folder / shard.name
        with reading(path, "not rows"):
            digest = sha256_file(path)
        if digest != shard.sha256:
            raise CorpusDamaged(path, f"its sha256 is {digest[:12]}..., the manifest says {shard.sha256[:12]}...")


_PREFIX = ".building-"


@contextmanager
def staging(parent: Path) -> Iterator[Path]:
    """Yield a temporary folder in `parent`, under a lock; first delete the folders that killed processes left there."""
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left_over in parent.glob(f"{_PREFIX}*"):
            shutil.rmtree(left_over)
        scratch = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def publish(folder: Path, target: Path) -> None:
    """Sync a finished folder to disk and rename it to `target`."""
    for path in folder.iterdir():
        sync(path)
    sync(folder)
    folder.chmod(0o755)
    folder.rename(target)
    sync(target.parent)
