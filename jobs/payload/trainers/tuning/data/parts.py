"""The reader of records for trainers, corpora and item sets: JSON lines and arrays, CSV, TSV, Parquet and Arrow.

A file is read record by record in constant memory. Damage loses only the damaged record or, where the next record
cannot be located, the rest of the file. The caller decides how to handle a record with a fault.
"""

import codecs
import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from .contents import COMPRESSED, Utf16AsUtf8, decompressed, is_text, is_utf16, library, read_block

DELIMITERS = {".csv": ",", ".tsv": "\t"}
TABLES = (".parquet", ".arrow")
JSON_KINDS = (".jsonl", ".ndjson", ".json")
KINDS = (*JSON_KINDS, *DELIMITERS, *TABLES)  # suffixes of files with records; all but tables may be compressed
_BYTE_ORDER_MARK = "\ufeff"  # concatenated files have it in the middle, too
_BLANK = " \t\r\n" + _BYTE_ORDER_MARK
_JSON_COLUMNS = {"messages", "conversations", "history", "tools", "chat_template_kwargs", "label"}
_FIELD_MAX = 1 << 25  # characters of a cell
_HEAD_BYTES = 4096
_BATCH_ROWS = 256
_ARROW_FILE = b"ARROW1\0\0"
_CONTROL = re.compile(r"[\x00-\x1f]")
_CHUNK_CHARACTERS = 1 << 16
# Number of different first keys of records that are remembered, to find the next record after damage.
_FIRST_KEYS = 16
_SEPARATORS = re.compile(r"[\s,]*")
_FIRST_KEY = re.compile(r'\{\s*("(?:[^"\\]|\\.){0,200}")\s*:')
# A record may begin at the end of the buffer and continue in the next chunk, so this much of the buffer is kept.
_OVERLAP_CHARACTERS = 1024


class RecordFault(StrEnum):
    """What is wrong with a record."""

    BAD_JSON = "bad_json"
    BAD_ROW = "bad_row"
    HALF_LINE = "half_line"
    NOT_UTF8 = "not_utf8"
    OVERSIZED = "oversized"
    TOO_DEEP = "too_deep"
    UNREADABLE = "unreadable"


class RecordPart(NamedTuple):
    """A record, or a fault where a record was expected. ``number`` counts lines, elements or rows from 1.

    A part with both ``fault`` and ``has_value`` is a record that is followed by other text. ``ends``: the rest of the
    file is not read. ``since``: the first version of the row format (see rows.py) that reads such a record.
    """

    number: int
    value: Any = None
    fault: RecordFault | None = None
    detail: str = ""
    has_value: bool = True
    ends: bool = False
    since: int = 0


def utf8(data: bytes, _line: int) -> str:
    """Return UTF-8 as text. Invalid bytes become lone surrogates, which mark their record as invalid."""
    return data.decode("utf-8", "surrogateescape")


class ReadingRules(NamedTuple):
    """A caller's limit of bytes per record, its function (bytes, line number) -> text, and its JSON decoder.

    The decoder is not strict: it accepts control characters in strings.
    """

    record_bytes_max: int = sys.maxsize
    decode: Callable[[bytes, int], str] = utf8
    decoder: json.JSONDecoder = json.JSONDecoder(strict=False)


def kind_of(name: str) -> str:
    """Return the suffix of a file name in lower case, ignoring the suffix of a compression."""
    name = name.lower()
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    return name[name.rindex(".") :] if "." in name else ""


def starts_array(head: bytes) -> bool:
    """Return whether contents that begin with ``head`` are a JSON array."""
    return head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")


def has_object_lines(text: str) -> bool:
    """Return whether a JSON file that begins with ``text`` has an object on each line."""
    first_line, _, rest = text.lstrip("\ufeff \t\r\n").partition("\n")
    return first_line.startswith("{") and first_line.rstrip().endswith("}") and rest.lstrip().startswith("{")


class RecordReader:
    """Reads the records of one file. After the first part, ``unit`` names what part numbers count."""

    def __init__(self, file: io.BufferedReader, name: str, rules: ReadingRules = ReadingRules()) -> None:  # noqa: B008
        self.unit = "line"
        self._file = file
        self._name = name
        self._kind = kind_of(name)
        self._rules = rules
        self._number = 0

    def parts(self, contents: io.BufferedReader | None = None) -> Iterator[RecordPart]:
        """Yield the parts of the file in order. Raises MissingLibrary, OSError.

        ``contents``: those of a text file, if the caller has already decompressed them and decoded UTF-16.
        """
        try:
            if self._name.lower().endswith(TABLES):
                yield from self._table()
            elif contents is not None:
                yield from self._text(contents)
            elif is_utf16(contents := decompressed(self._file, self._name)):
                for part in self._text(io.BufferedReader(Utf16AsUtf8(contents))):
                    yield part._replace(since=max(2, part.since))
            else:
                yield from self._text(contents)
        except EOFError:
            suffix = "." + self._name.rpartition(".")[2]
            detail = f"the {suffix} file is damaged or cut off, and is not read from here on"
            yield _fault_part(self._number + 1, RecordFault.UNREADABLE, detail)._replace(ends=True)

    def _text(self, contents: io.BufferedReader) -> Iterator[RecordPart]:
        head = contents.peek(_HEAD_BYTES)
        if self._kind in DELIMITERS:
            yield from self._rows(contents, DELIMITERS[self._kind])
        elif starts_array(head):
            self.unit = "element"
            for part in _ArrayReader(_DecodedBlocks(contents, self._rules.decode), self._rules):
                self._number = part.number
                yield part
        elif self._kind == ".json" and not has_object_lines(head.decode(errors="replace")):
            self._number = 1
            yield from self._single_value(contents)
        else:
            yield from self._lines(contents)

    def _single_value(self, contents: io.BufferedReader) -> Iterator[RecordPart]:
        """Yield the single JSON value that the file consists of."""
        limit = min(self._rules.record_bytes_max, _FIELD_MAX)
        data = contents.read(limit)
        if len(data) == limit:
            yield _fault_part(1, RecordFault.OVERSIZED, f"{limit} bytes or more, the limit is {limit}; left out")
        elif text := self._rules.decode(data, 1).strip().strip(_BYTE_ORDER_MARK):
            yield self._value(1, text)

    def _lines(self, contents: io.BufferedReader) -> Iterator[RecordPart]:
        limit = self._rules.record_bytes_max
        while line := contents.readline(limit):
            self._number += 1
            if len(line) < limit or line.endswith(b"\n"):
                decoded = self._rules.decode(line, self._number)
                if text := decoded.strip().strip(_BYTE_ORDER_MARK).strip():
                    odd = text != decoded.strip(_BLANK)
                    yield from self._line(text, 4 if odd else 2 * line.startswith(codecs.BOM_UTF8))
                continue
            # Skip the rest of the line without holding it in memory.
            size = len(line)
            while (line := contents.readline(limit)) and not line.endswith(b"\n"):
                size += len(line)
            detail = f"{size + len(line)} bytes, the limit is {limit}; left out"
            yield _fault_part(self._number, RecordFault.OVERSIZED, detail)

    def _line(self, text: str, since: int) -> Iterator[RecordPart]:
        """Yield the part of a line; several parts if CR alone separates objects, as in files of old systems."""
        part = self._value(self._number, text)
        if "\r" in text:
            lines = filter(str.strip, text.split("\r"))
            pieces = [self._value(self._number + at, line) for at, line in enumerate(lines)]
            if part.fault and all(isinstance(piece.value, dict) and not piece.fault for piece in pieces):
                self._number += len(pieces) - 1
                yield from pieces
                return
            since = 4
        elif _CONTROL.search(text) and not _is_strict(text):
            since = 4
        yield part._replace(since=since) if since else part

    def _value(self, number: int, text: str) -> RecordPart:
        if not is_text(text):
            return _fault_part(number, RecordFault.NOT_UTF8, "not UTF-8; left out")
        try:
            value, end = self._rules.decoder.raw_decode(text)
        except json.JSONDecodeError as error:
            fault = RecordFault.HALF_LINE if wants_more(error, len(text)) else RecordFault.BAD_JSON
            return _fault_part(number, fault, f"{error.msg} at character {error.pos}; left out")
        except RecursionError:
            return _fault_part(number, RecordFault.TOO_DEEP, "nested too deeply to read; left out")
        except ValueError as error:
            return _fault_part(number, RecordFault.BAD_JSON, f"{error}; left out")
        if end < len(text):
            detail = f"{len(text) - end} more characters after the record; left out"
            return RecordPart(number, value, RecordFault.BAD_JSON, detail)
        return RecordPart(number, value)

    def _rows(self, contents: io.BufferedReader, delimiter: str) -> Iterator[RecordPart]:
        """Yield the rows of a CSV file. The first row names the columns; a row has the number of its last line."""
        limit = min(self._rules.record_bytes_max, _FIELD_MAX)
        csv.field_size_limit(limit)  # a limit of the whole process, in which nothing else reads CSV
        oversized: list[RecordPart] = []
        lines = self._csv_lines(contents, limit, oversized)
        rows, head = csv.reader(lines, delimiter=delimiter, strict=True), None
        while True:
            try:
                row = next(rows, None)
            except csv.Error as error:
                yield from oversized
                yield _fault_part(self._number, RecordFault.BAD_ROW, f"it is not a row of a table: {error}")
                why = "it follows a line that is not a row, so where rows begin is not known"
                for _ in lines:
                    yield _fault_part(self._number, RecordFault.BAD_ROW, why)
                return
            if row is None:
                yield from oversized
                return
            if head is None:
                head = row
            elif row and len(row) != len(head):
                detail = "it has more or fewer columns than the first line"
                yield _fault_part(self._number, RecordFault.BAD_ROW, detail)
            elif row and not is_text("".join(row)):
                yield _fault_part(self._number, RecordFault.NOT_UTF8, "not UTF-8; left out")
            elif row:
                yield RecordPart(self._number, dict(zip(head, map(_cell, head, row), strict=True)))

    def _csv_lines(self, contents: io.BufferedReader, limit: int, oversized: list[RecordPart]) -> Iterator[str]:
        """Yield the lines of a CSV file until one is too long, which is added to ``oversized``."""
        while line := contents.readline(limit):
            if len(line) == limit and not line.endswith(b"\n"):
                # A row may have several lines, so the end of this row is unknown.
                part = _fault_part(
                    self._number + 1, RecordFault.OVERSIZED, f"longer than {limit} bytes; the rest is left out"
                )
                oversized.append(part._replace(ends=True))
                return
            for piece in line.splitlines(keepends=True):
                self._number += 1
                yield self._rules.decode(piece, self._number).lstrip(_BYTE_ORDER_MARK)

    def _table(self) -> Iterator[RecordPart]:
        """Yield the rows of a Parquet or Arrow file. Raises EOFError at damage."""
        self.unit = "row"
        arrow, limit = library("pyarrow", self._name), self._rules.record_bytes_max
        try:
            for batch in self._batches():
                batch.validate(full=True)  # damaged offsets would crash the process
                is_large = batch.nbytes > limit
                for at in range(batch.num_rows):
                    self._number += 1
                    if is_large and (size := batch.slice(at, 1).nbytes) > limit:
                        detail = f"{size} bytes, the limit is {limit}; left out"
                        yield _fault_part(self._number, RecordFault.OVERSIZED, detail)
                        continue
                    cells = zip(batch.schema.names, batch.columns, strict=True)
                    row = {name: value for name, column in cells if (value := _json_cell(column[at])) is not None}
                    yield RecordPart(self._number, row)
        except (arrow.ArrowException, OSError) as error:
            if getattr(error, "errno", None) is not None:
                raise
            raise EOFError from None

    def _batches(self) -> Iterator[Any]:
        """Yield the rows of a table in batches, read from disk on demand."""
        if self._kind == ".parquet":
            yield from library("pyarrow.parquet", self._name).ParquetFile(self._file).iter_batches(_BATCH_ROWS)
            return
        # The random-access format contains a stream, which can be read up to the cut if the file was cut off.
        if self._file.peek(len(_ARROW_FILE)).startswith(_ARROW_FILE):
            self._file.seek(len(_ARROW_FILE))
        yield from library("pyarrow.ipc", self._name).open_stream(self._file)


def _fault_part(number: int, fault: RecordFault, detail: str) -> RecordPart:
    return RecordPart(number, None, fault, detail, has_value=False)


def _is_strict(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def wants_more(error: json.JSONDecodeError, length: int) -> bool:
    """Return whether the text (of `length` characters) is incomplete rather than invalid."""
    return error.msg.startswith("Unterminated string") or error.pos >= length - len("false")


def _cell(column: str, text: str) -> Any:
    """Return a CSV cell: parsed JSON in columns that are not text (None for an empty cell), else the text."""
    if column not in _JSON_COLUMNS:
        return text
    try:
        return json.loads(text.lower() if column == "label" else text) if text else None
    except (ValueError, RecursionError):
        return text


def _json_cell(cell: Any) -> Any:
    """Return a cell of a table as a JSON value. Other values become an object, so that none is mistaken for text."""
    try:
        return _json(cell.as_py())
    except (ValueError, OverflowError):  # not UTF-8, or a time outside of the calendar
        return {"unreadable": str(cell.type)}


def _json(value: Any) -> Any:
    """Return a value as a JSON value. Nulls in objects are omitted: they mean that the row lacks the key."""
    if isinstance(value, dict):
        return {name: _json(part) for name, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return [_json(part) for part in value]
    if isinstance(value, bytes):
        return {"bytes": len(value)}
    return value if value is None or isinstance(value, str | int | float) else str(value)


class _DecodedBlocks:
    """A binary file as a text stream; a block that is not UTF-8 is decoded line by line."""

    def __init__(self, file: io.BufferedReader, decode: Callable[[bytes, int], str]) -> None:
        self._file = file
        self._decode = decode
        self._line = 1

    def read(self, size: int, /) -> str:
        data = read_block(self._file, size)
        try:
            data.decode()
            lines = [data]
        except UnicodeDecodeError:
            lines = data.splitlines(keepends=True)
        text = ""
        for line in lines:
            text += self._decode(line, self._line)
            self._line += line.count(b"\n")
        return text


class _ArrayReader:
    """Iterates over the elements of one JSON array; keeps about one element in memory."""

    def __init__(self, stream: _DecodedBlocks, rules: ReadingRules) -> None:
        self._stream = stream
        self._decoder = rules.decoder
        self._limit = rules.record_bytes_max
        self._buffer = ""
        self._position = 0
        self._first_keys: set[str] = set()

    def __iter__(self) -> Iterator[RecordPart]:
        self._fill()
        self._position = self._buffer.find("[") + 1
        number = 0
        while self._skip_space():
            number += 1
            if self._buffer[self._position] == "]":
                self._position += 1
                if not self._skip_space():
                    return
                detail = "the array ends, but the file goes on; going on at the next record"
                part = _fault_part(number, RecordFault.BAD_JSON, detail)
            else:
                part = self._element(number)
                # Skip the first character of a damaged record, so that the search does not find it again.
                self._position += part.fault is not None
            ends = part.fault is not None and not self._resume()
            yield part._replace(ends=ends, since=2 if part.fault is None else 4)
            if ends:
                return
        yield _fault_part(number + 1, RecordFault.HALF_LINE, "the array is not closed")._replace(ends=True, since=4)

    def _element(self, number: int) -> RecordPart:
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._position)
            except json.JSONDecodeError as error:
                if not wants_more(error, len(self._buffer)):
                    return _fault_part(number, RecordFault.BAD_JSON, f"{error.msg}; going on at the next record")
                if len(self._buffer) - self._position >= self._limit:
                    return _fault_part(number, RecordFault.OVERSIZED, f"over {self._limit} characters; left out")
                if not self._fill():
                    return _fault_part(number, RecordFault.HALF_LINE, f"{error.msg}; the file ends inside the record")
            except RecursionError:
                return _fault_part(number, RecordFault.TOO_DEEP, "nested too deeply to read")
            except ValueError as error:
                return _fault_part(number, RecordFault.BAD_JSON, str(error))
            else:
                # A number at the end of the buffer may continue in the next chunk.
                if end < len(self._buffer) or not self._fill():
                    match = _FIRST_KEY.match(self._buffer, self._position)
                    if match and len(self._first_keys) < _FIRST_KEYS:
                        self._first_keys.add(match[1])
                    self._position = end
                    return RecordPart(number, value)

    def _resume(self) -> bool:
        """Move to the next object whose first key is that of a valid record; return False if there is none."""
        keys = "|".join(map(re.escape, sorted(self._first_keys)))
        beginning = re.compile(rf"\{{\s*(?:{keys})\s*:" if keys else r"\{")
        while (match := beginning.search(self._buffer, self._position)) is None:
            self._position = max(self._position, len(self._buffer) - _OVERLAP_CHARACTERS)
            if not self._fill():
                return False
        self._position = match.start()
        return True

    def _skip_space(self) -> bool:
        """Move to the next character that is neither space nor comma; False at the end of the file."""
        while True:
            if match := _SEPARATORS.match(self._buffer, self._position):
                self._position = match.end()
            if self._position < len(self._buffer):
                return True
            if not self._fill():
                return False

    def _fill(self) -> bool:
        """Read at least as much as is unread in the buffer, which keeps parsing linear; return False at the end."""
        rest = self._buffer[self._position :]
        more = self._stream.read(max(_CHUNK_CHARACTERS, len(rest)))
        if more:
            self._buffer, self._position = rest + more, 0
        return bool(more)
