"""Files of JSON lines, cut at a size, each with its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from jobs.corpus.errors import CorpusDamaged
from jobs.payload.store.manifest import sha256_file


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a corpus or mixture: rows, size of the file, bytes of the texts in it (UTF-8)."""

    name: str
    sha256: str
    rows: int
    bytes: int
    text_bytes: int


class ShardFile:
    """One file being written, row by row, into `folder`."""

    def __init__(self, folder: Path, name: str) -> None:
        self.bytes = 0
        self._name = name
        self._file = (folder / name).open("xb")
        self._digest = hashlib.sha256()
        self._rows = self._text_bytes = 0

    def write(self, row: bytes, text_bytes: int) -> None:
        """Append one row: a JSON object without its line end, holding `text_bytes` of text."""
        line = row + b"\n"
        self._file.write(line)
        self._digest.update(line)
        self._rows += 1
        self.bytes += len(line)
        self._text_bytes += text_bytes

    def finish(self) -> Shard:
        """Close the file and describe it."""
        self.close()
        return Shard(self._name, self._digest.hexdigest(), self._rows, self.bytes, self._text_bytes)

    def close(self) -> None:
        """Close the file, whatever state it is in."""
        self._file.close()


def verify_shards(folder: Path, shards: Iterable[Shard]) -> None:
    """Raise CorpusDamaged for the first file that is missing or differs from its digest."""
    for shard in shards:
        path = folder / shard.name
        try:
            found = sha256_file(path)
        except OSError as error:
            raise CorpusDamaged(path, error.strerror or str(error)) from error
        if found != shard.sha256:
            raise CorpusDamaged(path, f"its sha256 is {found[:12]}..., the manifest says {shard.sha256[:12]}...")
