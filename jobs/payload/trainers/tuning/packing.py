"""Pieces of documents laid into rows of a fixed number of tokens, on disk.

So many are placed together that memory does not grow with the corpus. A document longer than a row was cut before;
short ones share a row, and none sees another.
"""

from __future__ import annotations

import bisect
import json
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np

LEARNED, BEGINS = 1, 2  # bits of a mark
FACTS = "rows.json"  # written last: a folder that has it is whole, unless something happened to its files since
_PIECES = 1 << 20  # placed together
_TOKENS_AT_ONCE = 1 << 22  # of rows that are put together in memory


def write_rows(
    folder: Path,
    pieces: Iterator[tuple[Sequence[int], bytes]],
    filler: int,
    length: int,
    rows_max: int | None,
    *,
    alone: bool = False,
) -> Mapping[str, int]:
    """Write ``tokens.bin`` (int32) and ``marks.bin`` (uint8), rows of ``length``, and return what they are.

    ``pieces`` are tokens and marks of at most a row. With ``rows_max`` no more is read than fills so many. ``alone``:
    each piece has a row of its own.
    """
    rows = tokens = written = windows = 0
    enough = None if rows_max is None else rows_max * length
    with (
        _Flat(folder) as flat,
        (folder / "tokens.bin").open("wb") as first,
        (folder / "marks.bin").open("wb") as second,
    ):
        while enough is None or written < enough:
            sizes = array("i")
            for piece, marks in islice(pieces, _PIECES):
                flat.add(piece, marks)
                sizes.append(len(piece))
                tokens += len(piece)
                written += length if alone else len(piece)
                if enough is not None and written >= enough:
                    break
            if not sizes:
                break
            places = np.arange(len(sizes), dtype=np.int32), np.zeros(len(sizes), np.int32), len(sizes)
            placed = places if alone else place_pieces(sizes, length)
            count = placed[2] if rows_max is None else min(placed[2], rows_max - rows)
            for block, marks_block in _blocks(flat, np.frombuffer(sizes, np.int32), placed, count, (length, filler)):
                first.write(block.data)
                second.write(marks_block.data)
            rows, windows = rows + count, windows + 1
            flat.empty()
    facts = {"rows": rows, "length": length, "tokens": tokens, "windows": windows}
    return {**facts, "alone": 1} if alone else facts


def place_pieces(sizes: Sequence[int], length: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], int]:
    """Return row and first place of each piece, and the number of rows (best fit, the longest first)."""
    lengths = np.asarray(sizes, np.int32)
    row_of, first_of = np.zeros(len(lengths), np.int32), np.zeros(len(lengths), np.int32)
    open_rows: dict[int, list[int]] = {}  # by the room that is left in them
    rooms: list[int] = []  # its keys, ascending
    rows = 0
    for piece in np.argsort(-lengths, kind="stable"):
        size = int(lengths[piece])
        at = bisect.bisect_left(rooms, size)
        if at < len(rooms):
            room = rooms[at]
            row = open_rows[room].pop()
            if not open_rows[room]:
                del open_rows[room], rooms[at]
        else:
            room, row, rows = length, rows, rows + 1
        row_of[piece], first_of[piece] = row, length - room
        if left := room - size:
            if left not in open_rows:
                open_rows[left] = []
                bisect.insort(rooms, left)
            open_rows[left].append(row)
    return row_of, first_of, rows


def seal(folder: Path, facts: Mapping[str, Any]) -> None:
    """Make files durable, and write down what they are and how long, by which one that was cut off is known."""
    sizes = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        sizes[path.name] = path.stat().st_size
    (folder / FACTS).write_text(json.dumps({**facts, "files": sizes}))


def is_whole(folder: Path) -> bool:
    """Whether the rows of a folder are all there."""
    try:
        facts = json.loads((folder / FACTS).read_bytes())
        tokens = int(facts["rows"]) * int(facts["length"])
        sizes = facts.get("files") or {"tokens.bin": 4 * tokens, "marks.bin": tokens}  # those of the program before
        return all((folder / name).stat().st_size == size for name, size in sizes.items() if size)
    except (OSError, ValueError, KeyError, TypeError):
        return False


class _Flat:
    """Pieces as they come, one after the other in two files, until each has its place."""

    def __init__(self, folder: Path) -> None:
        self._paths = [folder / name for name in ("flat-tokens", "flat-marks")]
        self._files = [path.open("w+b") for path in self._paths]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file, path in zip(self._files, self._paths, strict=True):
            file.close()
            path.unlink()

    def add(self, tokens: Sequence[int], marks: bytes) -> None:
        self._files[0].write(np.asarray(tokens, np.int32).tobytes())
        self._files[1].write(marks)

    def read(self, first: int, tokens: np.ndarray[Any, Any], marks: np.ndarray[Any, Any]) -> None:
        """Read from a place on, counted in tokens, what two arrays have room for."""
        os.preadv(self._files[0].fileno(), [tokens.data], 4 * first)
        os.preadv(self._files[1].fileno(), [marks.data], first)

    def flush(self) -> None:
        for file in self._files:
            file.flush()

    def empty(self) -> None:
        for file in self._files:
            file.seek(0)
            file.truncate()


def _blocks(
    flat: _Flat,
    sizes: np.ndarray[Any, Any],
    placed: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], int],
    count: int,
    form: tuple[int, int],
) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Yield tokens and marks of the first ``count`` rows, some rows at a time. ``form``: length of a row, filler."""
    row_of, first_of, _ = placed
    length, filler = form
    flat.flush()
    begins = np.cumsum(sizes, dtype=np.int64) - sizes
    order = np.lexsort((first_of, row_of))
    at_once = max(1, _TOKENS_AT_ONCE // length)
    for row in range(0, count, at_once):
        some = min(at_once, count - row)
        tokens, marks = np.full((some, length), filler, np.int32), np.zeros((some, length), np.uint8)
        ends = np.zeros(some, np.int64)
        where = np.searchsorted(row_of[order], (row, row + some))
        for piece in order[where[0] : where[1]]:
            own, first = row_of[piece] - row, first_of[piece]
            ends[own] = end = first + sizes[piece]
            flat.read(int(begins[piece]), tokens[own, first:end], marks[own, first:end])
        short = np.flatnonzero(ends < length)
        marks[short, ends[short]] |= BEGINS  # what fills the end of a row is a document of its own, seen by nothing
        yield tokens, marks
