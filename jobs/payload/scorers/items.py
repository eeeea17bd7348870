"""Test sets: one item a line, with an id, the cluster it belongs to, its domain, and what its scorer needs besides.

Items of one cluster (one template, one component, one author) are not independent of each other, and no statistics
here treat them as if they were. An item that names no cluster is one of its own.
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
    """A test set that cannot be used: which line, why, and what would be right."""


@dataclass(frozen=True, slots=True)
class Item:
    """One item; ``task`` is the whole record, for the scorer that the set was made for."""

    id: str
    cluster: str
    domain: str
    task: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ItemSet:
    """The items by id, in the order of the file, and the SHA-256 of its bytes, which names the set."""

    digest: str
    items: Mapping[str, Item]


def read_items(path: Path) -> ItemSet:
    """Read a test set. Raises BadItems for the first line that is no item, and OSError."""
    digest = hashlib.sha256()
    items: dict[str, Item] = {}
    size = 0
    with open_regular(path) as stream:
        number = 0
        while line := stream.readline(LINE_BYTES_MAX + 1):
            number += 1
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
                    raise BadItems(
                        f"{where}: the id {brief(item.id)} stands on an earlier line; every item has its own"
                    )
                items[item.id] = item
            if len(items) > ITEMS_MAX:
                raise BadItems(f"{where}: more than {ITEMS_MAX:,} items; split the set")
    if not items:
        raise BadItems(f"{path.name}: no item in it; write one JSON object a line, with an id")
    return ItemSet(digest.hexdigest(), items)


def records(stream: BinaryIO, line_bytes_max: int = LINE_BYTES_MAX) -> Any:
    """Yield number and object of each line; None for a line that is no JSON object or too long, never more of it."""
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
    """Return whether a value can be an id or a cluster: a text of 1 to 200 characters that can be shown."""
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


# The code in what a model wrote: what stands between fences, or all of it when there are none.
_FENCED = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[ \t]*\r?\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)


def code_in(text: str) -> str:
    """Return the longest fenced block of a text; the text when there is none."""
    blocks = [match[1] for match in _FENCED.findall(text)]
    return max(blocks, key=len) if blocks else text


# Score files: a header that names what was judged by what, then one item and metric a line. Sessions write them.
#
# The file appears under its name when it is whole; :mod:`jobs.scores` reads it and says what a line may hold.
SCHEMA = 1
EXAMPLE_MAX = 500  # characters


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """One score. ``example`` is a short text that shows a person why; ``value`` is finite."""

    item: str
    cluster: str
    metric: str
    value: float
    example: str = ""


@dataclass(frozen=True, slots=True)
class Header:
    """Model, and the digests of its checkpoint, of the test set and of the scorer.

    ``agreement`` is, by metric, how a judging model agreed with people: the table of counts that kappa is made of.
    ``notes`` say how it was scored, such as what held the code that was run.
    """

    model: str
    checkpoint: str
    set: str
    scorer: str
    agreement: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def document(self) -> dict[str, Any]:
        """Return it as the first line says it."""
        own = {name: value for name, value in asdict(self).items() if value or name not in {"agreement", "notes"}}
        return {"schema": SCHEMA, **own}


def write_scores(path: Path, header: Header, lines: Iterable[ScoreLine]) -> int:
    """Write a score file and return how many scores it has. Raises ValueError for a value that is not finite."""
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
