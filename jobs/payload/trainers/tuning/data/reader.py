"""Training data: which files of a folder are read, and their records; what cannot be read is counted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ....records.contents import COMPRESSED, FILES, RECORDS, MissingLibrary, is_record_file
from ....records.encodings import BROKEN_ENCODING, NOT_UTF8
from ....records.reader import BAD_JSON, HALF_LINE, LOST, OVERSIZED, TOO_DEEP, RecordEntry, RecordFile
from ..errors import UnreadableData
from .tally import Tally

_DATA = {".txt", *RECORDS, *COMPRESSED}
_LINE_MAX = 1 << 27  # bytes of a line, except in uncompressed JSON lines: a small file may hold an endless line
_REASONS = {
    NOT_UTF8: "it is not UTF-8", BROKEN_ENCODING: "it is not UTF-8", BAD_JSON: "it is no JSON",
    HALF_LINE: "it is no JSON", TOO_DEEP: "it is no JSON",
}  # fmt: skip


def files(folder: Path, stem: str) -> list[Path]:
    """Return the files of records in reading order; ``stem`` is a pattern of their names without the endings.

    A compressed file is left out if the same file lies beside it uncompressed.
    """
    paths = sorted(path for path in folder.glob(f"{stem}.*") if is_record_file(path.name))
    return [path for path in paths if path.suffix not in COMPRESSED or path.with_suffix("") not in paths]


def unread(folder: Path, paths: Sequence[Path]) -> list[list[Any]]:
    """Return files that look like training data but are not read, as reasons of a tally, each counted as one record."""
    beside = sorted(path for path in folder.glob("train*") if path not in paths and path.is_file())
    return [[_why_unread(path), 1, path.name] for path in beside if path.suffix in _DATA]


def _why_unread(path: Path) -> str:
    if path.name.startswith("train-") and is_record_file(path.name):
        return "its records are not read: the same file lies beside it uncompressed"
    return f"its records are not read: files of records are train-*{FILES}"


def data_digest(paths: Sequence[Path]) -> str:
    """Return the SHA-256 over names and contents of files."""
    whole = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            whole.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()


def records(paths: Sequence[Path], tally: Tally) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the records of files with their places; anything else is counted as left out.

    Raises UnreadableData if a library that a file needs is not installed.
    """
    for path in paths:
        with path.open("rb") as file:
            try:
                opened = (
                    RecordFile(file, path.name, _LINE_MAX) if path.suffix != ".jsonl" else RecordFile(file, path.name)
                )
                tally.since(2, changed=opened.wide)
                for entry in opened.entries():
                    tally.since(2, changed=entry.unit == "element" or opened.encodings["utf-8-sig"])
                    tally.since(4, changed=entry.lenient or (entry.unit == "element" and entry.value is LOST))
                    if not entry.faults and isinstance(entry.value, dict):
                        yield entry.value, entry.place(path.name)
                    else:
                        (tally.lose if entry.ends else tally.leave)(entry.place(path.name), _reason(entry))
            except MissingLibrary as error:
                raise UnreadableData(str(error)) from None


def _reason(entry: RecordEntry) -> str:
    """Return why an entry is left out. Reasons are counted, so that most of them name no details."""
    if not entry.faults:
        return "it is no JSON object"
    kind, detail = entry.faults[0]
    return f"it is longer than {_LINE_MAX:,} bytes" if kind == OVERSIZED else _REASONS.get(kind, detail)


def is_text(text: str) -> bool:
    """Return whether a text can be encoded, which half of a character (a lone surrogate) cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
