"""Rows of a fixed number of tokens, packed once from documents, and the order in which they are trained on.

A document longer than a row is cut; short ones share a row, and none sees another. The rows lie on disk in two arrays
(tokens; marks: what is learned and where documents begin), so that a corpus may be larger than the memory, and are
found again by the digest of all that they depend on.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import os
import shutil
import tempfile
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .documents import data_digest, documents
from .errors import UnreadableData
from .tokenizer import digest, first_lost

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .documents import Document

FORMAT = 1  # of the rows on disk
LEARNED, BEGINS = 1, 2  # bits of a mark
_DOCUMENTS_AT_ONCE = 1_000  # the tokenizer works on so many in parallel
_ROUND_TRIPS = 200  # documents of each corpus that are decoded again
_IGNORED = -100  # a target that no loss counts


class Batch(NamedTuple):
    """Rows as the model takes them, arrays of (rows, length). ``documents`` numbers the documents of each row."""

    tokens: np.ndarray[Any, Any]
    targets: np.ndarray[Any, Any]  # the next token, or -100 where none is to be learned
    positions: np.ndarray[Any, Any]
    documents: np.ndarray[Any, Any]
    seen: Mapping[str, np.ndarray[Any, Any]] = {}  # images, by what the model calls them


class Rows:
    """Packed rows of a corpus."""

    metrics: Mapping[str, float] = {}  # of a checkpoint, that they bring along

    def __init__(self, folder: Path) -> None:
        self.facts = json.loads((folder / "rows.json").read_bytes())
        self.length = int(self.facts["length"])
        shape = (int(self.facts["rows"]), self.length)
        empty = not shape[0]  # a file without bytes cannot be mapped
        self._tokens: np.ndarray[Any, Any] = (
            np.zeros(shape, np.int32) if empty else np.memmap(folder / "tokens.bin", np.int32, "r", shape=shape)
        )
        self._marks: np.ndarray[Any, Any] = (
            np.zeros(shape, np.uint8) if empty else np.memmap(folder / "marks.bin", np.uint8, "r", shape=shape)
        )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._tokens)

    def batch(self, indexes: Sequence[int]) -> Batch:
        """Return some rows. The target at a place is the token after it, within its document."""
        tokens, marks = self._tokens[list(indexes)].astype(np.int64), self._marks[list(indexes)]
        begins = (marks & BEGINS) > 0
        places = np.broadcast_to(np.arange(self.length), tokens.shape)
        positions = places - np.maximum.accumulate(np.where(begins, places, 0), axis=1)
        targets = np.full_like(tokens, _IGNORED)
        learned = ((marks & LEARNED) > 0) & ~begins
        targets[:, :-1] = np.where(learned, tokens, _IGNORED)[:, 1:]
        return Batch(tokens, targets, positions, np.cumsum(begins, axis=1))

    def targets(self, indexes: Sequence[int]) -> int:
        """Return how many tokens of some rows are to be learned."""
        marks = self._marks[list(indexes)][:, 1:]
        return int(np.count_nonzero((marks & (LEARNED | BEGINS)) == LEARNED))


class Order:
    """Which rows each step is made of: every row once, in an order of the seed's, then every row once in another.

    It knows nothing of devices, so that a job that moves to more of them, or fewer, goes on with the same rows.
    """

    def __init__(self, rows: int, rows_per_step: int, seed: int) -> None:
        self._rows, self._per_step, self._seed = rows, rows_per_step, seed
        self._round, self._shuffled = -1, np.zeros(0, np.int64)

    def step(self, step: int) -> list[int]:
        """Return the rows of a step, counted from 0."""
        first = step * self._per_step
        return [self._at(place) for place in range(first, first + self._per_step)]

    def _at(self, place: int) -> int:
        number, place = divmod(place, self._rows)
        if number != self._round:
            # RandomState, unlike its successors, promises the same stream in every version to come.
            self._shuffled = np.random.RandomState([self._seed & 0xFFFFFFFF, number]).permutation(self._rows)
            self._round = number
        return int(self._shuffled[place])


def pack(paths: Sequence[Path], tokenizer: Any, length: int, cache: Path, rows_max: int | None = None) -> Rows:
    """Return the rows of files: found in ``cache``, or made there, whole or not at all."""
    depends = [FORMAT, data_digest(paths), digest(tokenizer), length, rows_max]
    folder = cache / hashlib.sha256(json.dumps(depends).encode()).hexdigest()
    if not (folder / "rows.json").exists():
        cache.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=cache))
        try:
            _write(partial, _cut(encoded(documents(paths, tokenizer), tokenizer), length), tokenizer, length, rows_max)
            give_name(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return Rows(folder)


def give_name(partial: Path, folder: Path) -> None:
    """Let rows that are written be found; another process may have been quicker with the same."""
    try:
        partial.rename(folder)
    except OSError:
        if not (folder / "rows.json").exists():  # else another process was quicker, and made the same
            raise


def encoded(source: Iterator[Document], tokenizer: Any) -> Iterator[tuple[list[int], bytes]]:
    """Yield documents as tokens and marks. Pieces are encoded apart, as a prompt is where the model is used."""
    before = [token for token in tokenizer("")["input_ids"] if token != tokenizer.eos_token_id]
    if not before and tokenizer.init_kwargs.get("add_bos_token"):  # asked for, and added by no part of the file
        before = [tokenizer.bos_token_id]
    after = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    seen = 0
    while some := list(islice(source, _DOCUMENTS_AT_ONCE)):
        pieces = [piece for document in some for piece in document.pieces]
        if seen < _ROUND_TRIPS:
            lost = first_lost(tokenizer, (piece.text for piece in pieces[:_ROUND_TRIPS]))
            seen += len(some)
            if lost is not None:
                raise UnreadableData(f"the tokenizer turns {lost[0][:200]!r} of the corpus into {lost[1][:200]!r}")
        texts = [piece.text for piece in pieces]
        encoded = iter(tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"])
        for document in some:
            tokens = list(before) if document.plain else []
            marks = bytearray(len(tokens))
            for piece in document.pieces:
                ids = next(encoded)
                tokens += ids
                marks += bytes([LEARNED if piece.learned else 0]) * len(ids)
            if document.plain:
                tokens += after
                marks += bytes([LEARNED]) * len(after)
            if tokens:
                yield tokens, bytes(marks)


def _cut(source: Iterator[tuple[list[int], bytes]], length: int) -> Iterator[tuple[list[int], bytes]]:
    """Yield documents cut to at most a row; a piece in which nothing is learned is left out."""
    for tokens, marks in source:
        for first in range(0, len(tokens), length):
            piece = marks[first : first + length]
            if any(mark & LEARNED for mark in piece[1:]):
                yield tokens[first : first + length], bytes([piece[0] | BEGINS]) + piece[1:]


def _write(
    folder: Path, pieces: Iterator[tuple[list[int], bytes]], tokenizer: Any, length: int, rows_max: int | None
) -> None:
    """Lay the pieces on disk as they come, then copy them into the places that they are given."""
    sizes: list[int] = []
    flat_tokens, flat_marks = folder / "flat-tokens", folder / "flat-marks"
    with flat_tokens.open("wb") as tokens_file, flat_marks.open("wb") as marks_file:
        enough = None if rows_max is None else rows_max * length
        for tokens, marks in pieces:
            tokens_file.write(np.asarray(tokens, np.int32).tobytes())
            marks_file.write(marks)
            sizes.append(len(tokens))
            if enough is not None and (enough := enough - len(tokens)) <= 0:
                break
    places, rows = place_pieces(sizes, length)
    rows = rows if rows_max is None else min(rows, rows_max)
    (folder / "rows.json").write_text(
        json.dumps({"format": FORMAT, "rows": rows, "length": length, "tokens": sum(sizes)})
    )
    if rows:
        filler = tokenizer.eos_token_id or 0
        _copy(flat_tokens, folder / "tokens.bin", np.dtype(np.int32), filler, sizes, places, (rows, length))
        _copy(flat_marks, folder / "marks.bin", np.dtype(np.uint8), 0, sizes, places, (rows, length))
        _begin_fillers(folder / "marks.bin", sizes, places, (rows, length))
    os.remove(flat_tokens)  # noqa: PTH107 - Path.unlink is no shorter
    os.remove(flat_marks)  # noqa: PTH107 - as above


def place_pieces(sizes: Sequence[int], length: int) -> tuple[list[tuple[int, int]], int]:
    """Return row and first place of each piece, and the number of rows (best fit, the longest first)."""
    places: list[tuple[int, int]] = [(0, 0)] * len(sizes)
    open_rows: dict[int, list[int]] = {}  # by the room that is left in them
    rooms: list[int] = []  # its keys, ascending
    rows = 0
    for piece in sorted(range(len(sizes)), key=lambda piece: -sizes[piece]):
        at = bisect.bisect_left(rooms, sizes[piece])
        if at < len(rooms):
            room = rooms[at]
            row = open_rows[room].pop()
            if not open_rows[room]:
                del open_rows[room], rooms[at]
        else:
            room, row, rows = length, rows, rows + 1
        places[piece] = (row, length - room)
        if left := room - sizes[piece]:
            if left not in open_rows:
                open_rows[left] = []
                bisect.insort(rooms, left)
            open_rows[left].append(row)
    return places, rows


def _copy(
    source: Path,
    target: Path,
    kind: np.dtype[Any],
    filler: int,
    sizes: Sequence[int],
    places: Sequence[tuple[int, int]],
    shape: tuple[int, int],
) -> None:
    flat = np.memmap(source, kind, "r")
    rows = np.memmap(target, kind, "w+", shape=shape)
    rows[:] = filler
    first = 0
    for size, (row, place) in zip(sizes, places, strict=True):
        if row < shape[0]:
            rows[row, place : place + size] = flat[first : first + size]
        first += size
    rows.flush()


def _begin_fillers(path: Path, sizes: Sequence[int], places: Sequence[tuple[int, int]], shape: tuple[int, int]) -> None:
    """Mark what fills the end of a row as a document of its own, so that nothing sees it."""
    ends = np.zeros(shape[0], np.int64)
    for size, (row, place) in zip(sizes, places, strict=True):
        if row < shape[0]:
            ends[row] = max(ends[row], place + size)
    marks = np.memmap(path, np.uint8, "r+", shape=shape)
    short = np.flatnonzero(ends < shape[1])
    marks[short, ends[short]] |= BEGINS
    marks.flush()
