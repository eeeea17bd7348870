"""JSON values out of JSON lines or one JSON array; damage costs the damaged record only."""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Iterator
from io import BufferedReader
from typing import Any

from jobs.corpus.findings import Findings, Kind
from jobs.corpus.read.decode import decode
from jobs.corpus.read.json_array import ArrayReader, Damage
from jobs.corpus.read.lenient_json import DECODER, wants_more

_LINE_REST_BYTES = 1 << 16


class RecordReader:
    """Reads one file of records; reports damage to `findings` and counts encodings in `encodings`."""

    def __init__(self, source: str, findings: Findings, encodings: Counter[str], max_record_bytes: int) -> None:
        self._source = source
        self._findings = findings
        self._encodings = encodings
        self._max_record_bytes = max_record_bytes

    def read(self, file: BufferedReader) -> Iterator[tuple[int, Any]]:
        """Yield (line or element number, value) for every well-formed value in the file."""
        head = file.peek(4096)
        if head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
            yield from self._array(file)
        else:
            yield from self._lines(file)

    def decoded(self, data: bytes, line: int) -> str:
        """Decode one piece of the file, noting what it took."""
        found = decode(data)
        self._encodings[found.encoding] += 1
        if odd := found.oddity:
            self._findings.add(odd[0], self._source, line, odd[1])
        return found.text

    def _lines(self, file: BufferedReader) -> Iterator[tuple[int, Any]]:
        number = 0
        while line := file.readline(self._max_record_bytes):
            number += 1
            if len(line) < self._max_record_bytes or line.endswith(b"\n"):
                if text := self.decoded(line, number).strip():
                    yield from self._line(number, text)
                continue
            # Read past the end of the line without holding it.
            size = len(line)
            while (line := file.readline(self._max_record_bytes)) and not line.endswith(b"\n"):
                size += len(line)
            detail = f"{size + len(line)} bytes, the limit is {self._max_record_bytes}; left out"
            self._findings.add(Kind.OVERSIZED, self._source, number, detail)

    def _line(self, number: int, text: str) -> Iterator[tuple[int, Any]]:
        try:
            value, end = DECODER.raw_decode(text)
        except json.JSONDecodeError as error:
            kind = Kind.HALF_LINE if wants_more(error, len(text)) else Kind.BAD_JSON
            self._findings.add(kind, self._source, number, f"{error.msg} at character {error.pos}; left out")
        except RecursionError:
            self._findings.add(Kind.TOO_DEEP, self._source, number, "nested too deeply to read; left out")
        except ValueError as error:
            self._findings.add(Kind.BAD_JSON, self._source, number, f"{error}; left out")
        else:
            if end < len(text):
                detail = f"{len(text) - end} more characters after the record; left out"
                self._findings.add(Kind.BAD_JSON, self._source, number, detail)
            yield number, value

    def _array(self, file: BufferedReader) -> Iterator[tuple[int, Any]]:
        for number, value in ArrayReader(_DecodedBlocks(file, self), self._max_record_bytes):
            if isinstance(value, Damage):
                self._findings.add(value.kind, self._source, number, value.detail)
            else:
                yield number, value


class _DecodedBlocks:
    """A binary file as a text stream; where a block is not UTF-8, each of its lines is decoded by itself."""

    def __init__(self, file: BufferedReader, reader: RecordReader) -> None:
        self._file = file
        self._reader = reader
        self._line = 1

    def read(self, size: int, /) -> str:
        data = read_block(self._file, size)
        lines = [data] if _is_utf8(data) else data.splitlines(keepends=True)
        text = ""
        for line in lines:
            text += self._reader.decoded(line, self._line)
            self._line += line.count(b"\n")
        return text


def read_block(file: BufferedReader, size: int) -> bytes:
    """About `size` bytes, ending at a line end if one comes soon, never inside a UTF-8 sequence."""
    data = file.read(size)
    if not data.endswith(b"\n"):
        data += file.readline(_LINE_REST_BYTES)
    while data and not data.endswith(b"\n") and (ahead := file.peek(1)[:1]) and 0x80 <= ahead[0] < 0xC0:
        data += file.read(1)
    return data


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
