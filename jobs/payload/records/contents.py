"""The contents of files that may be compressed, and the rows of Parquet and Arrow files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import PurePath
from typing import Any

DELIMITERS = {".csv": ",", ".tsv": "\t"}
TABLES = (".parquet", ".arrow")
_TEXTS = (".jsonl", ".ndjson", ".json", *DELIMITERS)
RECORDS = (*_TEXTS, *TABLES)
# Modules are imported when they are needed: some builds of Python lack bz2 and lzma.
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": "zstandard"}
FILES = f"{', '.join(_TEXTS)} (also {', '.join(COMPRESSED)}) and {', '.join(TABLES)}"
"""The endings of files with records, for messages."""
_EXTRAS = {"zstandard": "zstd", "pyarrow": "parquet"}
_BLOCK = 1 << 10  # bytes; a block of zstandard becomes at most 32 MiB
_ROWS_AT_ONCE = 256
_ARROW_FILE = b"ARROW1\0\0"


class MissingLibrary(Exception):
    """A file cannot be read, because the library for its kind is not installed; the message says which."""


def kind_of(name: str) -> str:
    """Return the ending of a file's name in lower case, without that of a compression."""
    path = PurePath(name.lower())
    return path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix


def is_record_file(name: str) -> bool:
    """Return whether a file of this name has records; JSON and tables of text may be compressed."""
    return kind_of(name) in _TEXTS or name.lower().endswith(TABLES)


def contents(file: io.BufferedReader, name: str) -> io.BufferedReader:
    """Return the contents of an open file. Reading them raises EOFError where a compressed file is damaged.

    Raises MissingLibrary if the library of the compression is not installed.
    """
    suffix = PurePath(name.lower()).suffix
    if suffix in COMPRESSED:
        return io.BufferedReader(_Contents(file, suffix, library(COMPRESSED[suffix], name)))
    return file


class _Contents(io.RawIOBase):
    """The contents of a compressed file."""

    def __init__(self, file: io.BufferedReader, suffix: str, module: Any) -> None:
        opened = file if suffix == ".zst" else module.open(file, "rb")
        read = partial(getattr(opened, "read1", opened.read), io.DEFAULT_BUFFER_SIZE)
        self._blocks = _frames(file, module) if suffix == ".zst" else iter(read, b"")
        self._rest = memoryview(b"")
        self._damaged = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill ``buffer`` and return the number of bytes, 0 at the end. Raises EOFError where the file is damaged."""
        try:
            if self._damaged:
                raise EOFError
            self._rest = self._rest or memoryview(next((block for block in self._blocks if block), b""))
        except Exception as error:  # each library has its own errors for damaged data
            if getattr(error, "errno", None) is not None:  # the disk's, not the data's
                raise
            self._damaged = True  # some libraries would go on behind the damage
            raise EOFError from None
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _frames(file: io.BufferedReader, module: Any) -> Iterator[bytes]:
    """Yield the contents of zstandard frames. Raises EOFError if the last is cut off, which the library passes over."""
    frame, rest = None, b""
    while block := rest or file.read(_BLOCK):
        frame = frame or module.ZstdDecompressor().decompressobj()
        yield frame.decompress(block)
        frame, rest = (None, frame.unused_data) if frame.eof else (frame, b"")
    if frame is not None:
        raise EOFError


def library(module: str, name: str) -> Any:
    """Import the library that the file ``name`` needs. Raises MissingLibrary."""
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        extra = f" (for the scheduler: its extra `{_EXTRAS[package]}`)" if package in _EXTRAS else ""
        raise MissingLibrary(
            f"{name} cannot be read without {package}, which is not installed here: pip install {package}{extra}, or "
            "name it in the requirements of the job"
        ) from None


def table_rows(file: io.BufferedReader, name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet or Arrow file. Raises EOFError where it is damaged, and MissingLibrary."""
    arrow = library("pyarrow", name)
    try:
        for batch in _batches(file, name):
            batch.validate(full=True)  # damaged offsets would end the process
            for at in range(batch.num_rows):
                cells = zip(batch.schema.names, batch.columns, strict=True)
                yield {column: value for column, cell in cells if (value := _plain(cell[at])) is not None}
    except (arrow.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise EOFError from None


def _batches(file: io.BufferedReader, name: str) -> Iterator[Any]:
    """Yield the rows of a table in batches, from disk as they are needed."""
    if kind_of(name) == ".parquet":
        yield from library("pyarrow.parquet", name).ParquetFile(file).iter_batches(_ROWS_AT_ONCE)
        return
    # A file in the random-access format holds a stream, which is whole as far as it goes if the end is missing.
    file.seek(len(_ARROW_FILE) if file.read(len(_ARROW_FILE)) == _ARROW_FILE else 0)
    yield from library("pyarrow.ipc", name).open_stream(file)


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
