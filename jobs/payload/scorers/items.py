"""Test sets and score files. An item is one line with an id, its cluster, its domain, and fields for its scorer.

Items of one cluster (one template, component or author) are not independent; statistics treat them accordingly. An item
without a cluster is a cluster of its own.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ..bounded_file import open_regular
from ..bounds import NAME_MAX, brief, read_json

ITEMS_MAX = 100_000
SET_BYTES_MAX = 1 << 28
LINE_BYTES_MAX = 1 << 20
_DOMAIN = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


class BadItems(ValueError):
    """A test set cannot be used; the message says which line, why, and what to change."""


@dataclass(frozen=True, slots=True)
class Item:
    """One item; ``task`` is the whole record, for its scorer."""

    id: str
    cluster: str
    domain: str
    task: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ItemSet:
    """The items by id in file order, and the SHA-256 of the file, which names the set."""

    digest: str
    items: Mapping[str, Item]


def read_items(path: Path) -> ItemSet:
    """Read a test set. Raises BadItems for the first invalid line, and OSError."""
    digest = hashlib.sha256()
    items: dict[str, Item] = {}
    size = 0
    with open_regular(path) as stream:
        for number, line in enumerate(iter(lambda: stream.readline(LINE_BYTES_MAX + 1), b""), 1):
            size += len(line)
            digest.update(line)
            where = f"{path.name}, line {number}"
            if len(line) > LINE_BYTES_MAX:
                raise BadItems(f"{where}: longer than {LINE_BYTES_MAX:,} bytes; keep large files beside the set")
            if size > SET_BYTES_MAX:
                raise BadItems(f"{where}: the set is larger than {SET_BYTES_MAX >> 20} MiB; split it")
            if line.strip():
                item = _item(line, where)
                if item.id in items:
                    raise BadItems(f"{where}: the id {brief(item.id)} is used on an earlier line; make it unique")
                items[item.id] = item
            if len(items) > ITEMS_MAX:
                raise BadItems(f"{where}: more than {ITEMS_MAX:,} items; split the set")
    if not items:
        raise BadItems(f"{path.name}: no item in it; write one JSON object a line, with an id")
    return ItemSet(digest.hexdigest(), items)


def items_at(place: Path) -> ItemSet:
    """Read a test set from a file, or from the only JSON lines file of a folder. Raises BadItems, OSError."""
    files = sorted(place.glob("*.jsonl")) if place.is_dir() else [place]
    if len(files) != 1:
        names = ", ".join(path.name for path in files[:5]) or "none"
        raise BadItems(f"{place.name}: it must have one file of JSON lines (.jsonl), and has: {names}")
    return read_items(files[0])


def records(stream: BinaryIO, line_bytes_max: int = LINE_BYTES_MAX) -> Any:
    """Yield number and object of each line; None for a line that is too long or no JSON object."""
    number = 0
    while line := stream.readline(line_bytes_max + 1):
        number += 1
        whole = len(line) <= line_bytes_max
        while not line.endswith(b"\n") and (rest := stream.readline(line_bytes_max)):
            line, whole = rest, False
        try:
            record = read_json(line) if whole else None
        except (ValueError, UnicodeDecodeError):
            record = None
        if line.strip():
            yield number, record if isinstance(record, dict) else None


def is_name(value: object) -> bool:
    """Return whether a value can be an id or a cluster: a printable text of 1 to 200 characters."""
    return isinstance(value, str) and 0 < len(value) <= NAME_MAX and value.isprintable() and value.strip() == value


def _item(line: bytes, where: str) -> Item:
    try:
        record = read_json(line)
    except ValueError as error:
        raise BadItems(f"{where}: no JSON ({error}); write one object a line") from None
    if not isinstance(record, dict):
        raise BadItems(f"{where}: {brief(record)} is no object; write one like {{'id': 'sort-1', ...}}")
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


# Score files: a header, then one line per item and metric. :mod:`jobs.scores` reads and checks them.
SCHEMA = 1
EXAMPLE_MAX = 500  # characters


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """One score; ``value`` is finite, ``example`` a short text that shows why."""

    item: str
    cluster: str
    metric: str
    value: float
    example: str = ""


@dataclass(frozen=True, slots=True)
class Header:
    """Model, digests of checkpoint, set and scorer, table of counts by judged metric, and notes on the scoring."""

    model: str
    checkpoint: str
    set: str
    scorer: str
    agreement: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def document(self) -> dict[str, Any]:
        """Return the object of the first line."""
        own = {name: value for name, value in asdict(self).items() if value or name not in {"agreement", "notes"}}
        return {"schema": SCHEMA, **own}


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
