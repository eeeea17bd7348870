"""Reads the records of a file, a line, an element or a row at a time: JSON lines, a JSON array, CSV, Parquet or Arrow.

Damage loses only what is damaged. The reader says what is wrong and where; the caller decides what is kept.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from .contents import DELIMITERS, TABLES, contents, kind_of, table_rows
from .encodings import UTF16_MARKS, Decoded, RecordFault, Utf16AsUtf8, decode, read_block

BAD_JSON, BAD_ROW, CUT_OFF = "bad_json", "bad_row", "unreadable"
HALF_LINE, OVERSIZED, TOO_DEEP = "half_line", "oversized", "too_deep"
LOST: Any = object()
"""The value of an entry that cannot be read."""
UNLIMITED = sys.maxsize
_MARK = "\ufeff"  # byte order mark, also in the middle of concatenated files
_BLANK = " \t\r\n" + _MARK
_SPACE = "".join(sign for sign in map(chr, range(0x3001)) if sign.isspace()) + _MARK
_SPACE_BYTES = b" \t\r\n\v\f" + codecs.BOM_UTF8
_JSON_COLUMNS = {"messages", "conversations", "history", "tools", "chat_template_kwargs", "label"}
_CHUNK_CHARACTERS = 1 << 16
_FIRST_KEYS = 16  # most different first keys of records that are remembered
_BETWEEN = re.compile(r"[\s,]*")
_FIRST_KEY = re.compile(r'\{\s*("(?:[^"\\]|\\.){0,200}")\s*:')
_ESCAPED = re.compile("[\udc80-\udcff]")  # bytes that are not UTF-8
# The end of the buffer may cut the beginning of a record; this much of it is kept.
_OVERLAP_CHARACTERS = 1024


class RecordEntry(NamedTuple):
    """A value at its place, with its faults; LOST if it cannot be read, although a value may be read in spite of some.

    ``ends``: the rest of the file, of unknown size, is not read. ``lenient``: other readers refuse it, for a raw
    control character in a string, odd white space, or a carriage return inside.
    """

    unit: str  # line, element or row
    number: int  # from 1
    value: Any
    faults: tuple[RecordFault, ...] = ()
    ends: bool = False
    lenient: bool = False

    def place(self, name: str) -> str:
        """Return the place as text, for a file of this name."""
        return f"{name}:{self.number}" if self.unit == "line" else f"{name}, {self.unit} {self.number}"


class RecordFile:
    """One open file; ``stream`` is its text in UTF-8, and ``encodings`` counts what its lines were encoded in.

    ``size`` counts bytes read. ``wide`` is the decoder of a UTF-16 file, else None. Raises MissingLibrary.
    """

    def __init__(
        self,
        file: BufferedReader,
        name: str,
        limit: int = UNLIMITED,
        numbers: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """``limit``: bytes of a line, characters of an element or cell; ``numbers``: hooks of json.JSONDecoder."""
        self.kind = kind_of(name)
        self.encodings: Counter[str] = Counter()
        self.size = 0
        self.wide: Utf16AsUtf8 | None = None
        self.limit = limit
        self._file, self._name = file, name
        self._unit, self._number = "line", 0
        self._strict = json.JSONDecoder(**numbers)
        self._lenient = json.JSONDecoder(**numbers, strict=False)
        self.stream = contents(file, name)
        if self.head(2).startswith(UTF16_MARKS):
            # Of a compressed file everything before its damage is read; of others the beginning is one whole piece.
            self.wide = Utf16AsUtf8(self.stream.read if self.stream is file else self.stream.read1)
            self.stream = BufferedReader(self.wide)

    @property
    def is_table(self) -> bool:
        """Whether this is a Parquet or Arrow file, which has no text."""
        return self._name.lower().endswith(TABLES)

    def head(self, size: int) -> bytes:
        """Return the first bytes of the text, without moving on; none of a compressed file that is damaged there."""
        try:
            return self.stream.peek(size)[:size]
        except EOFError:
            return b""

    def entries(self) -> Iterator[RecordEntry]:
        """Yield everything that the file holds, in order."""
        try:
            if self.is_table:
                yield from self._table()
            elif self.kind in DELIMITERS:
                yield from self._rows(DELIMITERS[self.kind])
            elif self.head(4096).lstrip(_SPACE_BYTES).startswith(b"["):
                self._unit = "element"
                for element in _Array(self):
                    self._number = element.number
                    yield element
            else:
                for line in self._lines():
                    yield from [line] if isinstance(line, RecordEntry) else self._values(line)
        except EOFError:
            suffix = Path(self._name).suffix
            self._number += 1
            yield self._entry(
                CUT_OFF, f"the {suffix} file is damaged or cut off, and is not read from here on", ends=True
            )

    def _entry(self, kind: str, detail: str, value: Any = LOST, *, ends: bool = False) -> RecordEntry:
        return RecordEntry(self._unit, self._number, value, (RecordFault(kind, detail),), ends)

    def _lines(self) -> Iterator[bytes | RecordEntry]:
        """Yield each line, or an entry for one above the limit, which is never held as a whole."""
        while line := self.stream.readline(self.limit):
            self._number += 1
            size = len(line)
            if size < self.limit or line.endswith(b"\n"):
                self.size += size
                yield line
                continue
            while not line.endswith(b"\n") and (line := self.stream.readline(self.limit)):
                size += len(line)
            self.size += size
            yield self._entry(OVERSIZED, f"{size} bytes, the limit is {self.limit}")

    def _values(self, line: bytes) -> Iterator[RecordEntry]:
        """Yield the value of a line, or those of its parts if only these are JSON: old Macs ended lines by CR."""
        entry = self._value(line)
        if entry is not None and entry.faults and b"\r" in line.rstrip(b"\r\n"):
            self._number -= 1
            for part in line.splitlines():
                self._number += 1
                if (entry := self._value(part)) is not None:
                    yield entry
        elif entry is not None:
            yield entry

    def _value(self, line: bytes) -> RecordEntry | None:
        decoded = decode(line)
        self.encodings[decoded.encoding] += 1
        if not (text := decoded.text.strip(_SPACE)):
            return None
        value, faults = LOST, list(decoded.faults)
        lenient = "\r" in text or len(text) != len(decoded.text.strip(_BLANK))
        try:
            value, end, control = self.parsed(text, 0)
        except json.JSONDecodeError as error:
            kind = HALF_LINE if wants_more(error, len(text)) else BAD_JSON
            faults.append(RecordFault(kind, f"{error.msg} at character {error.pos}"))
        except RecursionError:
            faults.append(RecordFault(TOO_DEEP, "nested too deeply to read"))
        except ValueError as error:
            faults.append(RecordFault(BAD_JSON, str(error)))
        else:
            lenient |= control
            if end < len(text):
                faults.append(RecordFault(BAD_JSON, f"{len(text) - end} more characters after the record"))
        return RecordEntry(self._unit, self._number, value, tuple(faults), lenient=lenient)

    def parsed(self, text: str, start: int) -> tuple[Any, int, bool]:
        """Return the JSON value that begins at ``start``, its end, and whether it has control characters."""
        try:
            return (*self._strict.raw_decode(text, start), False)
        except json.JSONDecodeError as error:
            if not error.msg.startswith("Invalid control character"):
                raise
        return (*self._lenient.raw_decode(text, start), True)

    def block(self, size: int) -> str:
        """Return the next text of about ``size`` characters; bytes that are not UTF-8 become lone surrogates."""
        data = read_block(self.stream, size)
        self.size += len(data)
        text = data.decode("utf-8", "surrogateescape")
        if _is_escaped(text):
            self.encodings.update(decode(line).encoding for line in data.splitlines(keepends=True))
        else:
            self.encodings["utf-8-sig" if data.startswith(codecs.BOM_UTF8) else "utf-8"] += 1
        return text

    def _rows(self, delimiter: str) -> Iterator[RecordEntry]:
        """Yield the rows of a CSV file below its first, which names the columns; a row's place is its last line."""
        lines = self._text_lines()
        rows, head = csv.reader(lines, delimiter=delimiter, strict=True), None
        while True:
            csv.field_size_limit(self.limit)  # of the process, in which other files may have another limit
            try:
                row = next(rows, None)
            except _TooLong as error:
                yield error.entry
                return
            except csv.Error as error:
                self._number = rows.line_num
                yield self._entry(BAD_ROW, f"it is no row of a table: {error}")
                for self._number, _ in enumerate(lines, rows.line_num + 1):
                    yield self._entry(BAD_ROW, "it follows a line that is not a row, so where rows begin is not known")
                return
            if row is None:
                return
            if head is None:
                head = row
            elif row:
                yield self._row(head, row, rows.line_num)

    def _text_lines(self) -> Iterator[str]:
        for line in self._lines():
            if isinstance(line, RecordEntry):  # it may be a part of a row: it cannot be left out alone
                raise _TooLong(line._replace(ends=True))
            for part in line.splitlines(keepends=True):
                yield part.decode("utf-8", "surrogateescape").lstrip(_MARK)

    def _row(self, head: list[str], row: list[str], number: int) -> RecordEntry:
        if len(row) != len(head):
            fault = RecordFault(BAD_ROW, "it has more or fewer columns than the first line")
            return RecordEntry("line", number, LOST, (fault,))
        faults: tuple[RecordFault, ...] = ()
        if _is_escaped(joined := "".join(row)):
            faults = _repaired(joined).faults
            row = [_repaired(cell).text for cell in row]
        return RecordEntry("line", number, dict(zip(head, map(_cell, head, row), strict=True)), faults)

    def _table(self) -> Iterator[RecordEntry]:
        self._unit = "row"
        for row in table_rows(self._file, self._name):
            self._number += 1
            yield RecordEntry("row", self._number, row)


class _TooLong(Exception):
    def __init__(self, entry: RecordEntry) -> None:
        super().__init__()
        self.entry = entry


def _is_escaped(text: str) -> bool:
    return not text.isascii() and _ESCAPED.search(text) is not None


def _repaired(text: str) -> Decoded:
    return decode(text.encode("utf-8", "surrogateescape"))


def _cell(column: str, text: str) -> Any:
    """Return a cell as the value of a field: JSON where a field is no text, and null if such a cell is empty."""
    if column not in _JSON_COLUMNS:
        return text
    try:
        return json.loads(text.lower() if column == "label" else text) if text else None
    except (ValueError, RecursionError):
        return text


def wants_more(error: json.JSONDecodeError, length: int) -> bool:
    """Return whether the text (of `length` characters) is incomplete rather than invalid."""
    return error.msg.startswith("Unterminated string") or error.pos >= length - len("false")


class _Array:
    """Iterates over the elements of one JSON array and their damage; holds about one element in memory."""

    def __init__(self, file: RecordFile) -> None:
        self._file = file
        self._buffer = ""
        self._position = 0
        self._first_keys: set[str] = set()
        self._closed = False

    def __iter__(self) -> Iterator[RecordEntry]:
        self._fill()
        self._position = self._buffer.find("[") + 1
        number = 0
        while self._skip_space():
            number += 1
            if self._buffer[self._position] == "]":
                self._position += 1
                self._closed = True
                if not self._skip_space():
                    return
                entry = self._damage(BAD_JSON, "the array ends, but the file goes on")
            else:
                entry = self._element()
                # Move past the beginning of a damaged record, or it would be found as the next one.
                self._position += entry.value is LOST
            yield entry._replace(number=number)
            if entry.value is LOST and not self._resume():
                return
        yield self._damage(HALF_LINE, "the array is not closed")._replace(number=number + 1)

    def _damage(self, kind: str, detail: str) -> RecordEntry:
        return RecordEntry(
            "element", 0, LOST, (RecordFault(kind, detail),), ends=kind == HALF_LINE and not self._closed
        )

    def _element(self) -> RecordEntry:
        while True:
            try:
                value, end, lenient = self._file.parsed(self._buffer, self._position)
            except json.JSONDecodeError as error:
                if not wants_more(error, len(self._buffer)):
                    return self._damage(BAD_JSON, error.msg)
                if len(self._buffer) - self._position >= self._file.limit:
                    return self._damage(OVERSIZED, f"over {self._file.limit} characters")
                if not self._fill():
                    return self._damage(HALF_LINE, f"{error.msg}; the file ends inside the record")
            except RecursionError:
                return self._damage(TOO_DEEP, "nested too deeply to read")
            except ValueError as error:
                return self._damage(BAD_JSON, str(error))
            else:
                # A number at the end of the buffer may continue in the next chunk.
                if end < len(self._buffer) or not self._fill():
                    match = _FIRST_KEY.match(self._buffer, self._position)
                    if match and len(self._first_keys) < _FIRST_KEYS:
                        self._first_keys.add(match[1])
                    text, self._position = self._buffer[self._position : end], end
                    return self._whole(text, value, lenient=lenient)

    def _whole(self, text: str, value: Any, *, lenient: bool) -> RecordEntry:
        """Return an element that was read, decoded again if it is not UTF-8."""
        if not _is_escaped(text):
            return RecordEntry("element", 0, value, lenient=lenient)
        decoded = _repaired(text)
        try:
            value, _, _ = self._file.parsed(decoded.text, 0)
        except ValueError as error:
            return self._damage(BAD_JSON, str(error))
        return RecordEntry("element", 0, value, decoded.faults)

    def _resume(self) -> bool:
        """Move to the next record, found by a key that good records begin with; return False if there is none."""
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
            if match := _BETWEEN.match(self._buffer, self._position):
                self._position = match.end()
            if self._position < len(self._buffer):
                return True
            if not self._fill():
                return False

    def _fill(self) -> bool:
        """Drop what was read and read more, doubling, so that repeated attempts at one record stay linear."""
        rest = self._buffer[self._position :]
        more = self._file.block(max(_CHUNK_CHARACTERS, len(rest)))
        if more:
            self._buffer, self._position = rest + more, 0
        return bool(more)
