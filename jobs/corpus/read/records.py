"""Decode bytes to text, by the encoding that explains most of them, and turn records into documents."""

import codecs
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jobs.corpus.errors import Findings, Kind
from jobs.corpus.options import STAGES
from jobs.payload.trainers.tuning.data.forms import OddRecord, TrainingRecord, read_record, readable

# Bytes are decoded as UTF-8, else as the file declares, else as cp1252 or latin-1; UTF-16 needs a byte order mark.
# An encoding is declared in the notation of PEP 263, which editors support in any kind of file.
_DECLARED = re.compile(rb"coding[:=][ \t]*([-\w.]+)")
# All control characters but tab, line ends and form feed.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BINARY_SHARE = 0.02  # a file with a larger share of control characters is binary data


@dataclass(frozen=True, slots=True)
class Decoded:
    """Text, its encoding, and the number of undecodable sequences replaced by U+FFFD."""

    text: str
    encoding: str
    replaced: int = 0

    @property
    def oddity(self) -> tuple[Kind, str] | None:
        """The finding to report: the kind and the detail; None for undamaged UTF-8."""
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
    return len(_CONTROL.findall(head.decode("latin-1"))) > _BINARY_SHARE * len(head)


def clean(text: str) -> tuple[str, int, int]:
    """Return text with LF line ends, control characters removed and surrogates replaced; and the counts of both."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    surrogates = 0
    if not text.isascii():
        text, surrogates = _SURROGATE.subn("\ufffd", text)
    text, controls = _CONTROL.subn("", text)
    return text, controls, surrogates


# A blank line followed by an unindented one: between top-level definitions, or between paragraphs.
_PAUSE = re.compile(r"\n[ \t]*\n(?=\S)")


@dataclass(frozen=True, slots=True)
class CorpusDocument:
    """One text of a file (``source``, ``line``) with its tags; ``fields`` are the record's parts for trainers."""

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


class Decoding:
    """Decodes the pieces of a file, adds a finding for each odd piece, and counts `encodings`."""

    def __init__(self, source: str, findings: Findings, encodings: Counter[str]) -> None:
        self._source = source
        self._findings = findings
        self._encodings = encodings

    def decoded(self, data: bytes, line: int, declared: str | None = None) -> str:
        """Decode a piece that begins on a line, with a finding if it is odd."""
        text = decode(data, declared)
        self._encodings[text.encoding] += 1
        if odd := text.oddity:
            self._findings.add(odd[0], self._source, line, odd[1])
        return text.text


def _finite(number: str) -> float | None:
    # 1e999 is valid JSON, but infinity cannot be written as JSON.
    value = float(number)
    return value if math.isfinite(value) else None


# Not strict: control characters in strings are reported and removed later, and the record is kept.
DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=lambda _name: None, strict=False)


# Fields that become text, with their type. Everything else is metadata.
_HEADINGS: Mapping[str, str] = {
    "architectural_decisions": "Decisions", "code_patterns": "Patterns", "success_metrics": "What worked",
    "failure_points": "What failed", "claude_feedback": "Feedback",
}  # fmt: skip
_TEXT_FIELDS: Mapping[str, type] = {"text": str, "component_code": str, **dict.fromkeys(_HEADINGS, list)}
# Fields that are interpreted, and also kept as metadata.
_TAG_FIELDS: Mapping[str, type] = {"tank_building_stage": str, "stage": str, "manager_focus": str}
# Every record that is learned by its parts has one of these.
PARTS = ("messages", "conversations", "chosen", "completion", "output")


def document_of(value: Any, source: str, line: int, findings: Findings) -> CorpusDocument | None:
    """Return the document of a record; None, with a finding, if it has no text.

    A record with parts for trainers (see tuning/data/forms.py) keeps them; its text is all of them in order. The text
    of others is `text`, else `component_code` and one paragraph per kind of note. A field that is null or of a wrong
    type is ignored; the record is kept.
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
    """Return a record's parts for trainers; None for plain text and, with a finding, for an odd record."""
    if not any(name in record for name in PARTS):
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
