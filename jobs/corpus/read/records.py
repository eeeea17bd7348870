"""Records from JSON lines or one JSON array, as documents; damage loses only the damaged record."""

from __future__ import annotations

import codecs
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from typing import TYPE_CHECKING, Any

from jobs.corpus.errors import Findings, Kind
from jobs.corpus.options import STAGES
from jobs.payload.trainers.tuning.data.forms import OddRecord, TrainingRecord, read_record, readable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


# Bytes are decoded as UTF-8, else as the file declares, else as cp1252 or latin-1; UTF-16 needs a byte order mark.
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

# The notation of PEP 263, which editors support in any kind of file.
_DECLARED = re.compile(rb"coding[:=][ \t]*([-\w.]+)")
# Control characters other than tab, line ends and form feed.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BINARY_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Decoded:
    """Text, its encoding, and the number of undecodable sequences replaced by U+FFFD."""

    text: str
    encoding: str
    replaced: int = 0

    @property
    def oddity(self) -> tuple[Kind, str] | None:
        """The finding about it, if any."""
        if self.replaced:
            return Kind.BROKEN_ENCODING, f"{self.replaced} broken sequences replaced"
        if not self.encoding.startswith("utf-8"):
            return Kind.NOT_UTF8, f"read as {self.encoding}"
        return None


def declared_encoding(head: bytes) -> str | None:
    """Return the encoding named in the first two lines of a file, if it is a text encoding of Python."""
    for line in head.split(b"\n", 2)[:2]:
        if match := _DECLARED.search(line):
            try:
                name = codecs.lookup(match[1].decode("ascii")).name
                b"".decode(name)
            except (LookupError, UnicodeError):
                return None
            return name
    return None


def decode(data: bytes, declared: str | None = None) -> Decoded:
    """Decode `data`; never fails, because latin-1 decodes anything.

    Bytes that are not UTF-8 are either damaged UTF-8 (the damage is replaced) or an old eight-bit encoding (every
    non-ASCII byte is a character). The one that explains more of the non-ASCII bytes is used.
    """
    if data.startswith(codecs.BOM_UTF8):
        tail = decode(data[len(codecs.BOM_UTF8) :], declared)
        return Decoded(tail.text, "utf-8-sig" if tail.encoding == "utf-8" else tail.encoding, tail.replaced)
    for encoding in ("utf-8", declared):
        if encoding and (text := _strictly(data, encoding)) is not None:
            return Decoded(text, encoding)
    lenient = data.decode("utf-8", errors="replace")
    replaced = lenient.count("\ufffd")
    good = sum(1 for character in lenient if character > "\x7f") - replaced
    if good >= replaced:
        return Decoded(lenient, "utf-8", replaced)
    if (text := _strictly(data, "cp1252")) is not None:
        return Decoded(text, "cp1252")
    return Decoded(data.decode("latin-1"), "latin-1")


def _strictly(data: bytes, encoding: str) -> str | None:
    try:
        return data.decode(encoding)
    except ValueError:  # UnicodeError is a subclass; some encodings raise others
        return None


def looks_binary(head: bytes) -> bool:
    """Return whether the first kilobytes of a file are binary data."""
    controls = len(_CONTROL.findall(head.decode("latin-1")))
    return controls > _BINARY_SHARE * len(head)


def clean(text: str) -> tuple[str, int, int]:
    """Return text with LF line ends and without controls and surrogates, and the counts of both."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    surrogates = 0
    if not text.isascii():
        text, surrogates = _SURROGATE.subn("\ufffd", text)
    text, controls = _CONTROL.subn("", text)
    return text, controls, surrogates


class Utf16AsUtf8(io.RawIOBase):
    """A UTF-16 file with byte order mark as a UTF-8 stream; `replaced` counts broken characters so far."""

    def __init__(self, file: io.BufferedReader) -> None:
        self.replaced = 0
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        self._ready = b""
        self._ended = False

    def readable(self) -> bool:
        """Return True, for BufferedReader."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill `buffer` from the next piece of the file."""
        target = memoryview(buffer).cast("B")
        while not self._ready and not self._ended:
            data = self._file.read(io.DEFAULT_BUFFER_SIZE)
            self._ended = not data
            text = self._decoder.decode(data, final=self._ended)
            self.replaced += text.count("\ufffd")
            self._ready = text.encode("utf-8")
        count = min(len(target), len(self._ready))
        target[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


# A blank line followed by an unindented one: between top-level definitions, or between paragraphs.
_PAUSE = re.compile(r"\n[ \t]*\n(?=\S)")


@dataclass(frozen=True, slots=True)
class CorpusDocument:
    """One text of a file (``source``, ``line``) with its tags; ``fields`` are the parts that trainers learn."""

    text: str
    source: str
    line: int
    stage: str | None = None
    manager: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)


def split_text(text: str, limit: int) -> Iterator[tuple[int, str]]:
    """Yield (line offset, piece) of at most ``limit`` characters, cut at a pause, else a line end, else the limit."""
    start = line = 0
    while start < len(text):
        end = start + limit
        if end < len(text):
            pauses = list(_PAUSE.finditer(text, start + limit // 2, end))
            newline = text.rfind("\n", start, end)
            if pauses:
                end = pauses[-1].end()
            elif newline > start:
                end = newline + 1
        else:
            end = len(text)
        yield line, text[start:end]
        line += text.count("\n", start, end)
        start = end


_LINE_REST_BYTES = 1 << 16
_CHUNK_CHARACTERS = 1 << 16
# Maximum of different first keys of records that are remembered.
_FIRST_KEYS = 16
_BETWEEN = re.compile(r"[\s,]*")
_FIRST_KEY = re.compile(r'\{\s*("(?:[^"\\]|\\.){0,200}")\s*:')
# The end of the buffer may cut the beginning of a record; this much of it is kept.
_OVERLAP_CHARACTERS = 1024


class RecordReader:
    """Reads a file of records; adds damage to `findings` and counts encodings in `encodings`."""

    def __init__(self, source: str, findings: Findings, encodings: Counter[str], max_record_bytes: int) -> None:
        self._source = source
        self._findings = findings
        self._encodings = encodings
        self._max_record_bytes = max_record_bytes

    def read(self, file: BufferedReader) -> Iterator[tuple[int, Any]]:
        """Yield (line or element number, value) for every valid value of the file."""
        head = file.peek(4096)
        if head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
            for number, value in ArrayReader(_DecodedBlocks(file, self), self._max_record_bytes):
                if isinstance(value, DamagedElement):
                    self._findings.add(value.kind, self._source, number, value.detail)
                else:
                    yield number, value
        else:
            yield from self._lines(file)

    def decoded(self, data: bytes, line: int) -> str:
        """Decode one piece of the file, with a finding if it is odd."""
        text = decode(data)
        self._encodings[text.encoding] += 1
        if odd := text.oddity:
            self._findings.add(odd[0], self._source, line, odd[1])
        return text.text

    def _lines(self, file: BufferedReader) -> Iterator[tuple[int, Any]]:
        number = 0
        while line := file.readline(self._max_record_bytes):
            number += 1
            if len(line) < self._max_record_bytes or line.endswith(b"\n"):
                if text := self.decoded(line, number).strip():
                    yield from self._line(number, text)
                continue
            # Skip the rest of the line without holding it in memory.
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


class _DecodedBlocks:
    """A binary file as a text stream; in a block that is not UTF-8 each line is decoded by itself."""

    def __init__(self, file: BufferedReader, reader: RecordReader) -> None:
        self._file = file
        self._reader = reader
        self._line = 1

    def read(self, size: int, /) -> str:
        data = read_block(self._file, size)
        lines = [data] if _strictly(data, "utf-8") is not None else data.splitlines(keepends=True)
        text = ""
        for line in lines:
            text += self._reader.decoded(line, self._line)
            self._line += line.count(b"\n")
        return text


def read_block(file: BufferedReader, size: int) -> bytes:
    """Return about `size` bytes, up to a line end if one is near, never inside a UTF-8 sequence."""
    data = file.read(size)
    if not data.endswith(b"\n"):
        data += file.readline(_LINE_REST_BYTES)
    while data and not data.endswith(b"\n") and (ahead := file.peek(1)[:1]) and 0x80 <= ahead[0] < 0xC0:
        data += file.read(1)
    return data


# A huge JSON array is read element by element; a damaged element loses only itself.
@dataclass(frozen=True, slots=True)
class DamagedElement:
    """An element, or the end of the array, that could not be read."""

    kind: Kind
    detail: str


class ArrayReader:
    """Iterates over (element number, value or damage) of one JSON array; holds about one element in memory."""

    def __init__(self, stream: _DecodedBlocks, max_record_characters: int) -> None:
        self._stream = stream
        self._limit = max_record_characters
        self._buffer = ""
        self._position = 0
        self._first_keys: set[str] = set()

    def __iter__(self) -> Iterator[tuple[int, Any | DamagedElement]]:
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
                value: Any | DamagedElement = DamagedElement(Kind.BAD_JSON, detail)
            else:
                value = self._element()
                # Move past the beginning of a damaged record, or it would be found as the next one.
                self._position += isinstance(value, DamagedElement)
            yield number, value
            if isinstance(value, DamagedElement) and not self._resume():
                return
        yield number + 1, DamagedElement(Kind.HALF_LINE, "the array is not closed")

    def _element(self) -> Any | DamagedElement:
        while True:
            try:
                value, end = DECODER.raw_decode(self._buffer, self._position)
            except json.JSONDecodeError as error:
                if not wants_more(error, len(self._buffer)):
                    return DamagedElement(Kind.BAD_JSON, f"{error.msg}; going on at the next record")
                if len(self._buffer) - self._position >= self._limit:
                    return DamagedElement(Kind.OVERSIZED, f"over {self._limit} characters; left out")
                if not self._fill():
                    return DamagedElement(Kind.HALF_LINE, f"{error.msg}; the file ends inside the record")
            except RecursionError:
                return DamagedElement(Kind.TOO_DEEP, "nested too deeply to read")
            except ValueError as error:
                return DamagedElement(Kind.BAD_JSON, str(error))
            else:
                # A number at the end of the buffer may continue in the next chunk.
                if end < len(self._buffer) or not self._fill():
                    match = _FIRST_KEY.match(self._buffer, self._position)
                    if match and len(self._first_keys) < _FIRST_KEYS:
                        self._first_keys.add(match[1])
                    self._position = end
                    return value

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
        more = self._stream.read(max(_CHUNK_CHARACTERS, len(rest)))
        if more:
            self._buffer, self._position = rest + more, 0
        return bool(more)


def _finite(number: str) -> float | None:
    # 1e999 is valid JSON, but infinity cannot be written as JSON.
    value = float(number)
    return value if math.isfinite(value) else None


# Not strict: control characters in strings are reported and removed later, and the record is kept.
DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=lambda _name: None, strict=False)


def wants_more(error: json.JSONDecodeError, length: int) -> bool:
    """Return whether the text (of `length` characters) is incomplete rather than invalid."""
    return error.msg.startswith("Unterminated string") or error.pos >= length - len("false")


# Fields that become text, with their type. Everything else is metadata.
_HEADINGS: Mapping[str, str] = {
    "architectural_decisions": "Decisions", "code_patterns": "Patterns", "success_metrics": "What worked",
    "failure_points": "What failed", "claude_feedback": "Feedback",
}  # fmt: skip
_TEXT_FIELDS: Mapping[str, type] = {"text": str, "component_code": str, **dict.fromkeys(_HEADINGS, list)}
# Fields that are interpreted, and also kept as metadata.
_TAG_FIELDS: Mapping[str, type] = {"tank_building_stage": str, "stage": str, "manager_focus": str}
# Every record that is learned by its parts has one of these.
_PARTS = ("messages", "conversations", "chosen", "completion", "output")


def document_of(value: Any, source: str, line: int, findings: Findings) -> CorpusDocument | None:
    """Return the document of a record; None, with a finding, if it has no text.

    A record that trainers learn by its parts (tuning/data/forms.py) keeps these, and its text is all of them in order.
    The text of others is `text`, else `component_code` followed by one paragraph per kind of note. A null or a wrong
    type loses the field, not the record.
    """
    if not isinstance(value, dict):
        kind = Kind.NULL_FIELD if value is None else Kind.WRONG_TYPE
        findings.add(kind, source, line, f"the record is {_type(value)}, not an object; left out")
        return None
    parts = _parts(value, source, line, findings)
    record = {name: part for name, part in value.items() if parts is None or name not in parts.fields}
    if parts is not None:
        record["text"] = readable(parts)
    fields: dict[str, Any] = {}
    for name, wanted in (*_TEXT_FIELDS.items(), *_TAG_FIELDS.items()):
        if name not in record:
            continue
        content = record[name]
        if isinstance(content, wanted):
            fields[name] = content
            if name in _TEXT_FIELDS:
                del record[name]
        else:
            # The odd value stays in the metadata, so that nothing of a kept record is lost.
            kind = Kind.NULL_FIELD if content is None else Kind.WRONG_TYPE
            findings.add(kind, source, line, f"{name} is {_type(content)}, not {_type(wanted())}; not used")
    try:
        text: str = fields.get("text", "")
        if not text.strip():
            text = "\n\n".join(_paragraphs(fields))
    except RecursionError:
        findings.add(Kind.TOO_DEEP, source, line, "notes nested too deeply to read; left out")
        return None
    if not text:
        present = any(name in fields for name in _TEXT_FIELDS)
        kind = Kind.EMPTY_TEXT if present else Kind.MISSING_TEXT
        findings.add(kind, source, line, "no text in the record; left out")
        return None
    stage = _stage(fields, source, line, findings)
    kept = {} if parts is None else parts.fields
    return CorpusDocument(text, source, line, stage, fields.get("manager_focus"), record, kept)


def _parts(record: Mapping[str, Any], source: str, line: int, findings: Findings) -> TrainingRecord | None:
    """Return a record by its parts; None for plain text, and for an odd record, with a finding."""
    if not any(name in record for name in _PARTS):
        return None
    try:
        parsed = read_record(record)
    except (OddRecord, RecursionError) as odd:
        findings.add(Kind.WRONG_TYPE, source, line, f"not learned by its parts: {odd}")
        return None
    return None if parsed.form == "text" else parsed


def _stage(fields: Mapping[str, Any], source: str, line: int, findings: Findings) -> str | None:
    stage: str | None = fields.get("tank_building_stage", fields.get("stage"))
    if stage is None or stage in STAGES:
        return stage
    findings.add(Kind.UNKNOWN_STAGE, source, line, f"stage {stage!r} is none of {', '.join(STAGES)}")
    return None


def _paragraphs(fields: Mapping[str, Any]) -> Iterable[str]:
    if code := fields.get("component_code", "").strip("\n"):
        yield code
    for name, heading in _HEADINGS.items():
        if lines := [line for item in fields.get(name, ()) if (line := _sentence(item))]:
            yield "\n".join([f"{heading}:", *(f"- {line}" for line in lines)])


def _sentence(item: Any) -> str:
    """Return a note as text: a string as it is, an object as its strings in order."""
    if isinstance(item, str):
        return item.strip()
    if isinstance(item, dict):
        return "; ".join(part for value in item.values() if (part := _sentence(value)))
    if isinstance(item, list):
        return ", ".join(part for value in item if (part := _sentence(value)))
    return ""


def _type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"
