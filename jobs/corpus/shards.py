"""Files of JSON lines, cut at a size, each with its digest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a corpus or mixture: rows, size of the file, bytes of the texts in it (UTF-8)."""

    name: str
    sha256: str
    rows: int
    bytes: int
    text_bytes: int


class ShardWriter:
    """Writes rows into `folder` as `<stem>-00000.jsonl` and so on, or `<stem>.jsonl` when `shard_bytes` is None."""

    def __init__(self, folder: Path, stem: str, shard_bytes: int | None) -> None:
        self.shards: list[Shard] = []
        self._folder = folder
        self._stem = stem
        self._shard_bytes = shard_bytes
        self._file: BinaryIO | None = None
        if shard_bytes is None:
            self._open(f"{stem}.jsonl")

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def write(self, row: bytes, text_bytes: int) -> None:
        """Append one row (a JSON object without its line end)."""
        if self._shard_bytes is not None and self._file and self._bytes + len(row) >= self._shard_bytes:
            self._close()
        if not self._file:
            self._open(f"{self._stem}-{len(self.shards):05d}.jsonl")
        line = row + b"\n"
        assert self._file is not None
        self._file.write(line)
        self._digest.update(line)
        self._rows += 1
        self._bytes += len(line)
        self._text_bytes += text_bytes

    def _open(self, name: str) -> None:
        self._file = (self._folder / name).open("xb")
        self._name = name
        self._digest = hashlib.sha256()
        self._rows = self._bytes = self._text_bytes = 0

    def _close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None
            digest = self._digest.hexdigest()
            self.shards.append(Shard(self._name, digest, self._rows, self._bytes, self._text_bytes))
