"""Everything odd that was met while reading the sources: counted in full, listed up to a cap."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

DETAIL_CHARACTERS = 200


class Kind(StrEnum):
    """What was found. `docs/corpus.md` says for each kind what became of the text."""

    BAD_JSON = "bad_json"
    BAD_TAG = "bad_tag"
    BINARY = "binary"
    BROKEN_ENCODING = "broken_encoding"
    CONTROL_CHARACTERS = "control_characters"
    DUPLICATE = "duplicate"
    EMPTY_TEXT = "empty_text"
    HALF_LINE = "half_line"
    LONE_SURROGATE = "lone_surrogate"
    MISSING_TEXT = "missing_text"
    NOT_UTF8 = "not_utf8"
    NULL_FIELD = "null_field"
    OVERSIZED = "oversized"
    SKIPPED = "skipped"
    TOO_DEEP = "too_deep"
    UNKNOWN_STAGE = "unknown_stage"
    UNREADABLE = "unreadable"
    WRONG_TYPE = "wrong_type"


@dataclass(frozen=True, slots=True, order=True)
class CorpusFinding:
    """One oddity: where it is (`line` counts from 1; array elements too) and what is odd about it."""

    kind: Kind
    source: str
    line: int
    detail: str


@dataclass(slots=True)
class Findings:
    """Collects findings; keeps at most `listed_per_kind` of each kind but counts them all."""

    listed_per_kind: int = 200
    counts: Counter[str] = field(default_factory=Counter)
    listed: list[CorpusFinding] = field(default_factory=list)

    def add(self, kind: Kind, source: str, line: int, detail: str) -> None:
        """Count one finding and list it while its kind has room."""
        self.counts[kind] += 1
        if self.counts[kind] <= self.listed_per_kind:
            self.listed.append(CorpusFinding(kind, source, line, detail[:DETAIL_CHARACTERS]))

    def write(self, path: Path) -> None:
        """Write the listing as JSON lines, sorted by kind, source and line."""
        with path.open("w", encoding="ascii", newline="\n") as out:
            for finding in sorted(self.listed):
                out.write(json.dumps(asdict(finding)) + "\n")
