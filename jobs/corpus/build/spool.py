"""Documents on their way into a corpus: cleaned and deduplicated; only signatures and tags stay in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from jobs.corpus.build.domains import Keywords
from jobs.corpus.build.duplicates import identity, normalised, signature
from jobs.corpus.build.rules import Rules, Tags
from jobs.corpus.findings import Findings, Kind
from jobs.corpus.read.decode import clean
from jobs.corpus.read.document import Document


@dataclass(frozen=True, slots=True)
class Entry:
    """A kept document: where its row lies in the spool, and what clustering and the manifest need."""

    offset: int
    length: int
    text_bytes: int
    source: str
    signature: bytes
    stage: str | None
    manager: str | None
    held: int  # keywords, as bits
    tags: Tags  # of rules


class Spool:
    """Collects documents into `file`; `entries` maps the identity of each kept text to its entry."""

    def __init__(self, file: BinaryIO, findings: Findings, keywords: Keywords, rules: Rules) -> None:
        self.entries: dict[str, Entry] = {}
        self.documents_read = 0
        self._file = file
        self._end = 0
        self._findings = findings
        self._keywords = keywords
        self._rules = rules

    def add(self, document: Document) -> None:
        """Take one document; empty texts and exact duplicates become findings."""
        self.documents_read += 1
        text, controls, surrogates = clean(document.text)
        if controls:
            self._note(Kind.CONTROL_CHARACTERS, document, f"{controls} removed")
        if surrogates:
            self._note(Kind.LONE_SURROGATE, document, f"{surrogates} replaced")
        words = normalised(text)
        if not words:
            self._note(Kind.EMPTY_TEXT, document, "white space only; left out")
            return
        name = identity(words)
        tags = self._rules.of(document)  # of copies too: what is odd about rules must not depend on who came first
        try:
            row = _row(name, text, document)
        except RecursionError:
            self._note(Kind.TOO_DEEP, document, "metadata nested too deeply to write; left out")
            return
        known = self.entries.get(name)
        if known:
            self._note(Kind.DUPLICATE, document, f"same text as in {known.source}; left out")
            # Copies may differ in tags and metadata. Which one stays must not depend on who came first.
            if self.row(known) <= row:
                return
        self._file.seek(self._end)
        self._file.write(row)
        self.entries[name] = Entry(
            offset=self._end,
            length=len(row),
            text_bytes=len(text.encode()),
            source=document.source,
            signature=known.signature if known else signature(words),
            stage=document.stage,
            manager=document.manager,
            held=self._keywords.held(text),
            tags=tags,
        )
        self._end += len(row)

    def row(self, entry: Entry) -> bytes:
        """Read the row of an entry back, which is without its tags."""
        self._file.seek(entry.offset)
        return self._file.read(entry.length)

    def _note(self, kind: Kind, document: Document, detail: str) -> None:
        self._findings.add(kind, document.source, document.line, detail)


def _row(name: str, text: str, document: Document) -> bytes:
    row: dict[str, Any] = {
        "id": name,
        "text": text,
        "source": document.source,
        **_cleaned(document.fields),
    }
    if document.metadata:
        row["metadata"] = document.metadata
    # ASCII, because metadata may hold lone surrogates, which JSON can carry and UTF-8 cannot. Sorted,
    # so that copies of a record are equal however their fields were ordered.
    return json.dumps(row, sort_keys=True, separators=(",", ":")).encode("ascii")


def _cleaned(value: Any) -> Any:
    """The value with its texts as clean as that of a document."""
    if isinstance(value, str):
        return clean(value)[0]
    if isinstance(value, Mapping):
        return {name: _cleaned(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(part) for part in value]
    return value
