"""Find the files of training data and read their records by parts.py. Unreadable parts are counted in a tally."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .contents import COMPRESSED
from .parts import DELIMITERS, JSON_KINDS, TABLES, ReadingRules, RecordFault, RecordReader
from .tally import Tally

_DATA = {".txt", *JSON_KINDS, *DELIMITERS, *TABLES, *COMPRESSED}
_LINE_MAX = 1 << 25  # bytes of a line, a cell or an element: a small compressed file may hold an endless line
_REASONS = {RecordFault.NOT_UTF8: "it is not UTF-8"} | dict.fromkeys(
    (RecordFault.BAD_JSON, RecordFault.HALF_LINE, RecordFault.TOO_DEEP), "it is not JSON"
)


def files(folder: Path, stem: str) -> list[Path]:
    """Return the files of records in reading order; ``stem`` is a pattern of their names without the endings.

    A compressed file is left out if the folder has the same file uncompressed.
    """
    paths = sorted(path for path in folder.glob(f"{stem}.*") if _is_read(path))
    return [path for path in paths if path.suffix not in COMPRESSED or path.with_suffix("") not in paths]


def _is_read(path: Path) -> bool:
    """Return whether a file has records by its name; a table is never compressed as a whole."""
    kind = path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix
    return path.suffix in TABLES or kind in (*JSON_KINDS, *DELIMITERS)


def unread(folder: Path, paths: Sequence[Path]) -> list[list[Any]]:
    """Return files that look like training data but are not read, as a tally's [reason, count, place]; count is 1."""
    beside = sorted(path for path in folder.glob("train*") if path not in paths and path.is_file())
    return [[_why_unread(path), 1, path.name] for path in beside if path.suffix in _DATA]


def _why_unread(path: Path) -> str:
    if path.name.startswith("train-") and _is_read(path):
        return "its records are not read: the same file lies beside it uncompressed"
    kinds = f"train-*.jsonl, {', '.join([*JSON_KINDS[1:], *DELIMITERS])} (also {', '.join(COMPRESSED)})"
    return f"its records are not read: files of records are {kinds} and {', '.join(TABLES)}"


def data_digest(paths: Sequence[Path]) -> str:
    """Return the SHA-256 over names and contents of files."""
    whole = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            whole.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()


def records(paths: Sequence[Path], tally: Tally) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the records of files with their places; anything else is counted as left out. Raises MissingLibrary."""
    for path in paths:
        rules = ReadingRules() if path.suffix == ".jsonl" or path.suffix in TABLES else ReadingRules(_LINE_MAX)
        with path.open("rb") as file:
            reader = RecordReader(file, path.name, rules)
            for part in reader.parts():
                place = f"{path.name}:{part.number}"
                if reader.unit != "line":
                    place = f"{path.name}, {reader.unit} {part.number}"
                tally.since(part.since, changed=part.since)
                if part.fault is not None:
                    long = f"it is longer than {rules.record_bytes_max:,} bytes"
                    why = long if part.fault == RecordFault.OVERSIZED else _REASONS.get(part.fault, part.detail)
                    (tally.lose if part.ends else tally.leave)(place, why)
                elif isinstance(part.value, dict):
                    yield part.value, place
                else:
                    tally.leave(place, "it is not a JSON object")
