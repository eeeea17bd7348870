"""Test sets and score files. An item is a record with an id, a cluster, a domain, and fields for its scorer.

Items of one cluster (one template, component or author) are not independent, and statistics account for that. An item
without a cluster is a cluster of its own.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

from ..bounded_file import open_regular
from ..bounds import NAME_MAX, brief
from ..trainers.tuning.data.parts import KINDS, ReadingRules, RecordFault, RecordPart, RecordReader
from ..trainers.tuning.data.reader import files
from ..trainers.tuning.errors import MissingLibrary

ITEMS_MAX = 100_000
SET_BYTES_MAX = 1 << 28
LINE_BYTES_MAX = 1 << 20
_KINDS = ", ".join(KINDS[1:])
_TOO_LARGE = f"the set is larger than {SET_BYTES_MAX >> 20} MiB; split it"
_DOMAIN = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


class BadItems(ValueError):
    """A test set cannot be used; the message says which line, why, and what to change."""


@dataclass(frozen=True, slots=True)
class Item:
    """One item; ``task`` is the whole record, which the scorer interprets."""

    id: str
    cluster: str
    domain: str
    task: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ItemSet:
    """The items by id in file order, and the SHA-256 of the file, which names the set."""

    digest: str
    items: Mapping[str, Item]


def set_file(path: Path) -> Path:
    """Return the file of a test set: ``path``, or the only file of records in the folder ``path``. Raises BadItems."""
    paths = (sorted(path.glob("*.jsonl")) or files(path, "*")) if path.is_dir() else [path]
    if len(paths) != 1:
        names = ", ".join(each.name for each in paths[:5]) or "none"
        raise BadItems(f"{path.name}: it must have one file of JSON lines (.jsonl) or of {_KINDS}, and has: {names}")
    return paths[0]


def read_items(path: Path) -> ItemSet:
    """Return the test set in a file. Raises BadItems for the first invalid record, and OSError."""
    items: dict[str, Item] = {}
    size = 0
    with open_regular(path) as stream:
        if os.fstat(stream.fileno()).st_size > SET_BYTES_MAX:
            raise BadItems(f"{path.name}: {_TOO_LARGE}")
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        stream.seek(0)
        for where, part in _parts(path, stream, LINE_BYTES_MAX):
            if part.fault == RecordFault.OVERSIZED:
                raise BadItems(f"{where}: longer than {LINE_BYTES_MAX:,} bytes; keep large files beside the set")
            if part.fault is not None:
                detail = part.detail.removesuffix("; left out")
                raise BadItems(f"{where}: not JSON ({detail}); write one object per line")
            item = _item(part.value, where)
            if item.id in items:
                raise BadItems(f"{where}: the id {brief(item.id)} is used on an earlier line; make it unique")
            items[item.id] = item
            if len(items) > ITEMS_MAX:
                raise BadItems(f"{where}: more than {ITEMS_MAX:,} items; split the set")
            size += len(str(part.value))  # a small compressed file may hold a large set
            if size > SET_BYTES_MAX:
                raise BadItems(f"{where}: {_TOO_LARGE}")
    if not items:
        raise BadItems(f"{path.name}: it has no item; write one JSON object with an id per line")
    return ItemSet(digest, items)


def items_at(path: Path) -> ItemSet:
    """Return the test set in a file or folder, see :func:`set_file`. Raises BadItems, OSError."""
    return read_items(set_file(path))


def records(path: Path, bytes_max: int = LINE_BYTES_MAX) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield the number and the object of each record; None for a record that is too long or invalid. Raises OSError."""
    with open_regular(path) as stream:
        for _, part in _parts(path, stream, bytes_max):
            is_object = part.fault is None and isinstance(part.value, dict)
            yield part.number, part.value if is_object else None


def _parts(path: Path, stream: BufferedReader, bytes_max: int) -> Iterator[tuple[str, RecordPart]]:
    """Yield where each part of a file is, for messages, and the part. Raises BadItems if a library is missing."""
    reader = RecordReader(stream, path.name, ReadingRules(bytes_max + 1))
    try:
        for part in reader.parts():
            yield f"{path.name}, {reader.unit} {part.number}", part
    except MissingLibrary as error:
        raise BadItems(str(error)) from None


def is_name(value: object) -> bool:
    """Return whether a value may be an id or a cluster: a printable text of 1 to 200 characters."""
    return isinstance(value, str) and 0 < len(value) <= NAME_MAX and value.isprintable() and value.strip() == value


def _item(record: Any, where: str) -> Item:
    if not isinstance(record, dict):
        raise BadItems(f"{where}: {brief(record)} is not an object; write one like {{'id': 'sort-1', ...}}")
    name = record.get("id")
    cluster = record.get("cluster", name)
    domain = record.get("domain", "")
    for key, value in (("id", name), ("cluster", cluster)):
        if not is_name(value):
            raise BadItems(f"{where}: {key} is {brief(value)}; give a text of 1 to {NAME_MAX} characters")
    if domain != "" and not (isinstance(domain, str) and _DOMAIN.fullmatch(domain)):
        raise BadItems(f"{where}: domain is {brief(domain)}; use up to 40 characters of a-z, 0-9, _ and -")
    return Item(str(name), str(cluster), domain, record)


_FENCED = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[ \t]*\r?\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)


def code_in(text: str) -> str:
    """Return the longest fenced block of a text; the whole text if there is none."""
    blocks = [match[1] for match in _FENCED.findall(text)]
    return max(blocks, key=len) if blocks else text


# Score files: a header, then one line per item and metric. :mod:`jobs.scores` reads and validates them.
SCHEMA = 1
EXAMPLE_MAX = 500  # characters


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """One score; ``value`` is finite, ``example`` is a short text that explains it."""

    item: str
    cluster: str
    metric: str
    value: float
    example: str = ""


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a score file: what was scored, digests, a judge's table of counts by metric, and notes."""

    model: str
    checkpoint: str
    set: str
    scorer: str
    agreement: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def document(self) -> dict[str, Any]:
        """Return the JSON object of the first line."""
        fields = {name: value for name, value in asdict(self).items() if value or name not in {"agreement", "notes"}}
        return {"schema": SCHEMA, **fields}


def write_scores(path: Path, header: Header, lines: Iterable[ScoreLine]) -> int:
    """Write a score file atomically; return the number of scores. Raises ValueError for a value that is not finite."""
    partial = path.with_name(path.name + ".partial")
    count = 0
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(json.dumps(header.document()) + "\n")
        for line in lines:
            if not math.isfinite(line.value):
                raise ValueError(f"{line.metric} of {line.item} is {line.value}: a score is a finite number")
            fields = {"item": line.item, "cluster": line.cluster, "metric": line.metric, "value": line.value}
            if line.example:
                fields["example"] = line.example[:EXAMPLE_MAX]
            stream.write(json.dumps(fields, ensure_ascii=True) + "\n")
            count += 1
        stream.flush()
        os.fsync(stream.fileno())
    partial.rename(path)
    return count
