"""Reads the records of training data from files, a line or a row at a time; what cannot be read is counted.

A file holds JSON lines, one JSON array, CSV, TSV, Parquet or Arrow; text may be compressed. Columns are fields.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from ..errors import UnreadableData
from .tally import Tally

_MARK = "\ufeff"  # byte order mark, also in the middle of concatenated files
_BLANK = " \t\r\n" + _MARK
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_TABLES = (".parquet", ".arrow")
# Modules are imported when they are needed: some builds of Python lack bz2 and lzma.
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": "zstandard"}
_DATA = {".jsonl", ".json", ".ndjson", ".txt", *_DELIMITERS, *_TABLES, *_COMPRESSED}
_JSON_COLUMNS = {"messages", "conversations", "history", "tools", "chat_template_kwargs", "label"}
_LINE_MAX = 1 << 25  # characters of a line, a cell or a compressed array: a small file may hold an endless line
_BLOCK = 1 << 10  # bytes; a block of zstandard becomes at most 32 MiB
_ROWS_AT_ONCE = 256
_DAMAGED = "the {} file is damaged or cut off, and is not read from here on"
_ARROW_FILE = b"ARROW1\0\0"


def files(folder: Path, stem: str) -> list[Path]:
    """Return the files of records in reading order; ``stem`` is a pattern of their names without the endings.

    A compressed file is left out if the same file lies beside it uncompressed.
    """
    paths = sorted(path for path in folder.glob(f"{stem}.*") if _is_read(path))
    return [path for path in paths if path.suffix not in _COMPRESSED or path.with_suffix("") not in paths]


def _is_read(path: Path) -> bool:
    return path.suffix in _TABLES or _kind(path) in (".jsonl", *_DELIMITERS)


def _kind(path: Path) -> str:
    """Return the ending of a file's name, without that of a compression."""
    return path.with_suffix("").suffix if path.suffix in _COMPRESSED else path.suffix


def unread(folder: Path, paths: Sequence[Path]) -> list[list[Any]]:
    """Return files that look like training data but are not read, as reasons of a tally, each counted as one record."""
    beside = sorted(path for path in folder.glob("train*") if path not in paths and path.is_file())
    return [[_why_unread(path), 1, path.name] for path in beside if path.suffix in _DATA]


def _why_unread(path: Path) -> str:
    if path.name.startswith("train-") and _is_read(path):
        return "its records are not read: the same file lies beside it uncompressed"
    kinds = f"train-*.jsonl, {', '.join(_DELIMITERS)} (also {', '.join(_COMPRESSED)}) and {', '.join(_TABLES)}"
    return f"its records are not read: files of records are {kinds}"


def data_digest(paths: Sequence[Path]) -> str:
    """Return the SHA-256 over names and contents of files."""
    whole = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            whole.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()


def records(paths: Sequence[Path], tally: Tally) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the records of files with their places; anything else is counted as left out.

    Raises UnreadableData if a library that a file needs is not installed.
    """
    for path in paths:
        for value, place in _table(path, tally) if path.suffix in _TABLES else _values(path, tally):
            if isinstance(value, dict):
                yield value, place
            else:
                tally.leave(place, "it is no JSON object")


def _values(path: Path, tally: Tally) -> Iterator[tuple[Any, str]]:
    """Yield the values of a text file with their places. Invalid UTF-8 loses only its line."""
    wide = _is_wide(path)
    tally.since(2, changed=wide)
    if delimiter := _DELIMITERS.get(_kind(path)):
        yield from _rows(path, delimiter, tally, wide=wide)
        return
    if (elements := _array(path, wide=wide)) is not None:
        tally.since(2, changed=True)
        yield from ((element, f"{path.name}, element {number}") for number, element in enumerate(elements, 1))
        return
    for number, line in _lines(path, tally, wide=wide):
        tally.since(2, changed=line.startswith(_MARK))
        if text := line.strip(_BLANK):
            yield from _value(text, f"{path.name}:{number}", tally)


def _is_wide(path: Path) -> bool:
    with _binary(path) as file:
        try:
            return file.read(2) in _UTF16
        except EOFError:
            return False


def _lines(path: Path, tally: Tally, *, wide: bool, newline: str | None = None) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file with their numbers. Damage of a compressed file loses the lines from there on.

    ``newline`` as of ``open``; it is set for CSV, whose rows may have several lines.
    """
    most, number = -1 if path.suffix == ".jsonl" else _LINE_MAX, 0
    with _opened(path, wide=wide, newline=newline) as file:
        try:
            while line := file.readline(most):
                number += 1
                if len(line) != most or line.endswith("\n"):
                    yield number, line
                    continue
                place, why = f"{path.name}:{number}", f"it is longer than {_LINE_MAX:,} characters"
                if newline is not None:  # a line may be a part of a row: it cannot be left out alone
                    tally.lose(place, why)
                    return
                tally.leave(place, why)
                while (line := file.readline(most)) and not line.endswith("\n"):
                    pass
        except EOFError:
            tally.lose(f"{path.name}:{number + 1}", _DAMAGED.format(path.suffix))


def _opened(path: Path, *, wide: bool, newline: str | None = None) -> TextIO:
    """Open text; bytes that are not UTF-8 become lone surrogates, by which their line is recognised."""
    encoding, errors = ("utf-16", "replace") if wide else ("utf-8", "surrogateescape")
    return io.TextIOWrapper(_binary(path), encoding=encoding, errors=errors, newline=newline)


def _binary(path: Path) -> io.BufferedReader:
    """Open the contents of a file. Reading them raises EOFError where a compressed file is damaged.

    Raises UnreadableData if the library of the compression is not installed.
    """
    if path.suffix not in _COMPRESSED:
        return path.open("rb")
    return io.BufferedReader(_Contents(path, _library(_COMPRESSED[path.suffix], path)))


class _Contents(io.RawIOBase):
    """The contents of a compressed file."""

    def __init__(self, path: Path, library: Any) -> None:
        self._file = path.open("rb") if path.suffix == ".zst" else library.open(path, "rb")
        read = partial(self._file.read1, io.DEFAULT_BUFFER_SIZE)
        self._blocks = _frames(self._file, library) if path.suffix == ".zst" else iter(read, b"")
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill ``buffer`` and return the number of bytes, 0 at the end. Raises EOFError where the file is damaged."""
        try:
            self._rest = self._rest or memoryview(next((block for block in self._blocks if block), b""))
        except Exception as error:  # each library has its own errors for damaged data
            if getattr(error, "errno", None) is not None:  # the disk's, not the data's
                raise
            raise EOFError from None
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()


def _frames(file: Any, library: Any) -> Iterator[bytes]:
    """Yield the contents of zstandard frames. Raises EOFError if the last is cut off, which the library passes over."""
    frame, rest = None, b""
    while block := rest or file.read(_BLOCK):
        frame = frame or library.ZstdDecompressor().decompressobj()
        yield frame.decompress(block)
        frame, rest = (None, frame.unused_data) if frame.eof else (frame, b"")
    if frame is not None:
        raise EOFError


def _library(name: str, path: Path) -> Any:
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise UnreadableData(
            f"{path.name} cannot be read without {package}, which is not installed here: pip install {package}, or "
            "name it in the requirements of the job"
        ) from None


def _array(path: Path, *, wide: bool) -> list[Any] | None:
    """Return the elements of a file that is one JSON array; None for any other file."""
    with _opened(path, wide=wide) as file:
        try:
            while head := file.read(1):
                if head not in _BLANK:
                    break
            if head != "[":
                return None
            array = json.loads(head + file.read(-1 if path.suffix == ".jsonl" else _LINE_MAX))
        except (EOFError, ValueError, RecursionError):  # JSON lines that start with an array
            return None
    return array if isinstance(array, list) else None


def _value(text: str, place: str, tally: Tally) -> Iterator[tuple[Any, str]]:
    try:
        text.encode()
        yield json.loads(text), place
    except UnicodeEncodeError:
        tally.leave(place, "it is not UTF-8")
    except (ValueError, RecursionError):
        tally.leave(place, "it is no JSON")


def _rows(path: Path, delimiter: str, tally: Tally, *, wide: bool) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the rows of a CSV file below its first, which names the columns; a row's place is its last line."""
    csv.field_size_limit(_LINE_MAX)  # of the process, in which nothing else reads CSV
    lines = (line.lstrip(_MARK) for _, line in _lines(path, tally, wide=wide, newline=""))
    rows, head = csv.reader(lines, delimiter=delimiter, strict=True), None
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            tally.leave(f"{path.name}:{rows.line_num}", f"it is no row of a table: {error}")
            for number, _ in enumerate(lines, rows.line_num + 1):
                tally.leave(
                    f"{path.name}:{number}", "it follows a line that is not a row, so where rows begin is not known"
                )
            return
        if row is None:
            return
        if head is None:
            head = row
        elif row:
            place = f"{path.name}:{rows.line_num}"
            if len(row) != len(head):
                tally.leave(place, "it has more or fewer columns than the first line")
            elif not is_text("".join(row)):
                tally.leave(place, "it is not UTF-8")
            else:
                yield dict(zip(head, map(_cell, head, row), strict=True)), place


def _cell(column: str, text: str) -> Any:
    """Return a cell as the value of a field: JSON where a field is no text, and null if such a cell is empty."""
    if column not in _JSON_COLUMNS:
        return text
    try:
        return json.loads(text.lower() if column == "label" else text) if text else None
    except (ValueError, RecursionError):
        return text


def is_text(text: str) -> bool:
    """Return whether a text can be encoded, which half of a character (a lone surrogate) cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _table(path: Path, tally: Tally) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the rows of a Parquet or Arrow file. Damage loses the rows from there on."""
    arrow, number = _library("pyarrow", path), 0
    try:
        for batch in _batches(path):
            batch.validate(full=True)  # damaged offsets would end the process
            for at in range(batch.num_rows):
                number += 1
                cells = zip(batch.schema.names, batch.columns, strict=True)
                row = {name: value for name, column in cells if (value := _plain(column[at])) is not None}
                yield row, f"{path.name}, row {number}"
    except (arrow.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        tally.lose(f"{path.name}, row {number + 1}", _DAMAGED.format(path.suffix))


def _batches(path: Path) -> Iterator[Any]:
    """Yield the rows of a table in batches, from disk as they are needed."""
    if path.suffix == ".parquet":
        yield from _library("pyarrow.parquet", path).ParquetFile(path).iter_batches(_ROWS_AT_ONCE)
        return
    arrow = _library("pyarrow.ipc", path)
    with path.open("rb") as file:
        # A file in the random-access format holds a stream, which is whole as far as it goes if the end is missing.
        file.seek(len(_ARROW_FILE) if file.read(len(_ARROW_FILE)) == _ARROW_FILE else 0)
        yield from arrow.open_stream(file)


def _plain(cell: Any) -> Any:
    """Return a cell of a table as JSON would have it; what JSON has not is an object, so that it is no text."""
    try:
        return _json(cell.as_py())
    except (ValueError, OverflowError):  # not UTF-8, or a time outside of the calendar
        return {"unreadable": str(cell.type)}


def _json(value: Any) -> Any:
    """Return a value as JSON would have it, without the nulls that a column has where a row lacks a key."""
    if isinstance(value, dict):
        return {name: _json(part) for name, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return [_json(part) for part in value]
    if isinstance(value, bytes):
        return {"bytes": len(value)}
    return value if value is None or isinstance(value, str | int | float) else str(value)
