"""Errors, which stop the work on a corpus, and findings: problems of single records, which never stop a build."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from jobs.problem import InvalidInput


class CorpusError(InvalidInput):
    """Base of all corpus errors."""


class NoSuchVersion(CorpusError):
    """There is no corpus of this version."""

    def __init__(self, version: str, versions: Sequence[str]) -> None:
        self.version = version
        self.versions = tuple(versions)
        why = f"here are {', '.join(versions)}" if versions else "none has been built here"
        super().__init__(f"there is no corpus {version or 'yet'}", why, "See `schedctl corpus show`, or build one")


class CorpusDamaged(CorpusError):
    """A corpus or mixture folder does not match its manifest."""

    def __init__(self, path: Path, why: str, remedy: str = "Delete its folder and build it again") -> None:
        super().__init__(f"corpus file {path} cannot be trusted", why, remedy)


@contextmanager
def reading(path: Path, fault: str) -> Iterator[None]:
    """Raise CorpusDamaged for errors while a file is read; ``fault`` describes invalid content."""
    try:
        yield
    except OSError as error:
        raise CorpusDamaged(path, error.strerror or str(error)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusDamaged(path, f"{fault} ({error})") from error


class BadParameter(CorpusError):
    """An argument is out of range."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        self.name = name
        self.value = value
        self.allowed = allowed
        super().__init__(f"{name} is {value!r}, but must be {allowed}")


DETAIL_CHARACTERS = 200  # a longer detail of a finding is cut


class Kind(StrEnum):
    """The kind of a finding. `docs/corpus.md` explains for each kind how the text is handled."""

    BAD_JSON = "bad_json"
    BAD_ROW = "bad_row"
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
    SAMPLED_OUT = "sampled_out"
    SKIPPED = "skipped"
    TEST_ITEM = "test_item"
    TOO_DEEP = "too_deep"
    UNKNOWN_STAGE = "unknown_stage"
    UNREADABLE = "unreadable"
    WRONG_TYPE = "wrong_type"


@dataclass(frozen=True, slots=True, order=True)
class CorpusFinding:
    """One problem of a record. `line` counts lines or array elements of `source` from 1; 0 means the whole file."""

    kind: Kind
    source: str
    line: int
    detail: str


@dataclass(slots=True)
class Findings:
    """Collects findings; lists at most `listed_per_kind` of each kind but counts all."""

    listed_per_kind: int = 200
    counts: Counter[str] = field(default_factory=Counter)
    listed: list[CorpusFinding] = field(default_factory=list)

    def add(self, kind: Kind, source: str, line: int, detail: str) -> None:
        """Count a finding; list it if fewer than `listed_per_kind` of its kind are listed."""
        self.counts[kind] += 1
        if self.counts[kind] <= self.listed_per_kind:
            self.listed.append(CorpusFinding(kind, source, line, detail[:DETAIL_CHARACTERS]))

    def write(self, path: Path) -> None:
        """Write the list as JSON lines, sorted by kind, source and line."""
        with path.open("w", encoding="ascii", newline="\n") as out:
            for finding in sorted(self.listed):
                out.write(json.dumps(asdict(finding)) + "\n")
