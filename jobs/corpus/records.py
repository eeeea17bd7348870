"""JSON objects out of JSON lines or one JSON array, streamed; damage costs the damaged record only."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from io import BufferedReader, TextIOWrapper
from typing import Any, Protocol

from jobs.corpus.decode import UTF16_MARKS, decode
from jobs.corpus.findings import Findings, Kind

_CHUNK_CHARACTERS = 1 << 16
_SPACE = re.compile(r"[\s,]*")
_FIRST_KEY = re.compile(r'\{\s*("(?:[^"\\]|\\.){0,200}")\s*:')


def _finite(number: str) -> float | None:
    # 1e999 is valid JSON, but infinity cannot be written back as JSON.
    value = float(number)
    return value if math.isfinite(value) else None


# Not strict: raw control characters inside strings are reported and removed later, the record is kept.
_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=lambda _name: None, strict=False)


class _Reader(Protocol):
    def read(self, size: int, /) -> str: ...


class RecordReader:
    """Reads one file of records and reports damage to `findings`, encodings to `encodings`."""

    def __init__(
        self, source: str, findings: Findings, encodings: Counter[str], max_record_bytes: int
    ) -> None:
        self._source = source
        self._findings = findings
        self._encodings = encodings
        self._max_record_bytes = max_record_bytes

    def read(self, file: BufferedReader) -> Iterator[tuple[int, Any]]:
        """Yield (line or element number, parsed value) for every well-formed value in the file."""
        head = file.peek(4096)
        if head.startswith(UTF16_MARKS):
            self._encodings["utf-16"] += 1
            text = TextIOWrapper(file, encoding="utf-16", errors="replace")
            is_array = text.read(64).lstrip().startswith("[")
            text.seek(0)
            yield from self._array(text) if is_array else self._text_lines(text)
        elif head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
            yield from self._array(_BytesAsText(file, self))
        else:
            yield from self._byte_lines(file)

    def text_of(self, data: bytes, line: int) -> str:
        """Decode one piece of the file, noting what it took."""
        decoded = decode(data)
        self._encodings[decoded.encoding] += 1
        if decoded.replaced:
            detail = f"{decoded.replaced} broken sequences replaced"
            self._findings.add(Kind.BROKEN_UTF8, self._source, line, detail)
        elif not decoded.encoding.startswith("utf-8"):
            self._findings.add(Kind.NOT_UTF8, self._source, line, f"read as {decoded.encoding}")
        return decoded.text

    def _byte_lines(self, file: BufferedReader) -> Iterator[tuple[int, Any]]:
        number = 0
        while data := file.readline(self._max_record_bytes):
            number += 1
            size = len(data)
            if size == self._max_record_bytes and not data.endswith(b"\n"):
                while (more := file.readline(self._max_record_bytes)) and not more.endswith(b"\n"):
                    size += len(more)
                self._oversized(number, size + len(more))
            elif not data.isspace():
                yield from self._line(number, self.text_of(data, number))

    def _text_lines(self, file: TextIOWrapper) -> Iterator[tuple[int, Any]]:
        number = 0
        while text := file.readline(self._max_record_bytes):
            number += 1
            if len(text) == self._max_record_bytes and not text.endswith("\n"):
                size = len(text)
                while (more := file.readline(self._max_record_bytes)) and not more.endswith("\n"):
                    size += len(more)
                self._oversized(number, size + len(more))
            elif not text.isspace():
                yield from self._line(number, text)

    def _oversized(self, number: int, size: int) -> None:
        detail = f"{size} bytes, limit {self._max_record_bytes}; left out"
        self._findings.add(Kind.OVERSIZED, self._source, number, detail)

    def _line(self, number: int, text: str) -> Iterator[tuple[int, Any]]:
        text = text.strip()
        try:
            value, end = _DECODER.raw_decode(text)
        except json.JSONDecodeError as error:
            kind = Kind.HALF_LINE if _wants_more(error, len(text)) else Kind.BAD_JSON
            self._findings.add(kind, self._source, number, f"{error.msg} at character {error.pos}")
            return
        except (ValueError, RecursionError) as error:
            self._hostile(number, error)
            return
        if end < len(text):
            detail = f"{len(text) - end} characters after the record; left out"
            self._findings.add(Kind.BAD_JSON, self._source, number, detail)
            return
        yield number, value

    def _hostile(self, number: int, error: ValueError | RecursionError) -> None:
        if isinstance(error, RecursionError):
            self._findings.add(Kind.TOO_DEEP, self._source, number, "nested too deeply to read")
        else:
            self._findings.add(Kind.BAD_JSON, self._source, number, str(error))

    def _array(self, file: _Reader) -> Iterator[tuple[int, Any]]:
        """Elements of one JSON array, from a buffer that holds about one record at a time."""
        buffer, number, ended = "", 0, False
        first_key: str | None = None
        position = 0

        def fill() -> bool:
            nonlocal buffer, position, ended
            more = file.read(max(_CHUNK_CHARACTERS, len(buffer) - position))
            ended = not more
            buffer = buffer[position:] + more
            position = 0
            return bool(more)

        fill()
        opening = buffer.find("[")
        position = opening + 1
        while True:
            position = _end_of(_SPACE, buffer, position)
            if position == len(buffer):
                if fill():
                    continue
                self._findings.add(Kind.HALF_LINE, self._source, number + 1, "the array is not closed")
                return
            if buffer[position] == "]":
                position += 1
                while _end_of(_SPACE, buffer, position) == len(buffer):
                    position = len(buffer)
                    if not fill():
                        return
                self._findings.add(
                    Kind.BAD_JSON, self._source, number + 1, "more text after the array; left out"
                )
                return
            number += 1
            if found := _FIRST_KEY.match(buffer, position):
                first_key = found[1]
            problem: tuple[Kind, str] | None = None
            try:
                value, end = _DECODER.raw_decode(buffer, position)
                # A number at the end of the buffer may go on in the next chunk.
                if end == len(buffer) and not ended and fill():
                    number -= 1
                    continue
                position = end
                yield number, value
                continue
            except json.JSONDecodeError as error:
                if _wants_more(error, len(buffer)):
                    if len(buffer) - position < self._max_record_bytes:
                        if fill():
                            number -= 1
                            continue
                        problem = (Kind.HALF_LINE, f"{error.msg}; the file ends inside the record")
                    else:
                        detail = f"more than {self._max_record_bytes} characters; left out"
                        problem = (Kind.OVERSIZED, detail)
                else:
                    problem = (Kind.BAD_JSON, f"{error.msg}; going on at the next record")
            except RecursionError:
                problem = (Kind.TOO_DEEP, "nested too deeply to read")
            except ValueError as error:
                problem = (Kind.BAD_JSON, str(error))
            self._findings.add(problem[0], self._source, number, problem[1])
            # Exports write all records alike, so the next record begins with the same key as this one.
            again = re.compile(r"\{\s*" + re.escape(first_key) + r"\s*:" if first_key else r"\{")
            position += 1
            while (start := again.search(buffer, position)) is None:
                # Keep a tail: the beginning we look for may be cut by the end of the buffer.
                position = max(position, len(buffer) - 1024)
                if not fill():
                    return
            position = start.start()


class _BytesAsText:
    """`read(size)` in text over a binary file, cut at line ends so that each piece decodes by itself."""

    def __init__(self, file: BufferedReader, reader: RecordReader) -> None:
        self._file = file
        self._reader = reader
        self._line = 1

    def read(self, size: int, /) -> str:
        data = read_block(self._file, size)
        if not data:
            return ""
        text = self._reader.text_of(data, self._line)
        self._line += data.count(b"\n")
        return text


def read_block(file: BufferedReader, size: int) -> bytes:
    """About `size` bytes, ending at a line end if one comes soon, never inside a UTF-8 sequence."""
    data = file.read(size)
    if not data.endswith(b"\n"):
        data += file.readline(_CHUNK_CHARACTERS)
    while data and not data.endswith(b"\n") and (ahead := file.peek(1)[:1]) and 0x80 <= ahead[0] < 0xC0:
        data += file.read(1)
    return data


def _wants_more(error: json.JSONDecodeError, length: int) -> bool:
    """Whether the text stopped too early rather than being wrong."""
    return error.msg.startswith("Unterminated string") or error.pos >= length - 8


def _end_of(pattern: re.Pattern[str], text: str, position: int) -> int:
    found = pattern.match(text, position)
    return found.end() if found else position
