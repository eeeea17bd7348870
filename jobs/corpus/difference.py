"""What changed from one version of a corpus to another."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jobs.corpus.errors import reading
from jobs.corpus.manifest import CorpusManifest, Shard
from jobs.corpus.read.sources import label_of
from jobs.payload.bounds import read_json

_NONE: tuple[str, Any] = ("", None)


@dataclass(slots=True)
class Difference:
    """Texts by what became of them, and the parameters that are others, with old and new value.

    `added` and `removed` count by source. `now_trained` and `now_held_out` changed sides: on what the old version
    trained on, a model that learned from it measures too well. `retagged` have another stage or other domains.
    """

    old: str
    new: str
    same: int = 0
    added: dict[str, int] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    now_trained: int = 0
    now_held_out: int = 0
    retagged: int = 0
    parameters: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


def difference(old: CorpusManifest, new: CorpusManifest) -> Difference:
    """Compare two versions text by text, holding none of them. Raises CorpusDamaged."""
    names = sorted({*old.parameters, *new.parameters})
    pairs = {name: (old.parameters.get(name), new.parameters.get(name)) for name in names}
    compared = Difference(
        old.version, new.version, parameters={name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    )
    ours, theirs = _texts(old), _texts(new)
    mine, other = next(ours, _NONE), next(theirs, _NONE)
    while mine is not _NONE or other is not _NONE:
        if other is _NONE or (mine is not _NONE and mine[0] < other[0]):
            _count(compared.removed, mine[1][2])
            mine = next(ours, _NONE)
        elif mine is _NONE or other[0] < mine[0]:
            _count(compared.added, other[1][2])
            other = next(theirs, _NONE)
        else:
            (was_held_out, were, _), (is_held_out, are, _) = mine[1], other[1]
            compared.same += 1
            compared.retagged += were != are
            compared.now_trained += was_held_out and not is_held_out
            compared.now_held_out += is_held_out and not was_held_out
            mine, other = next(ours, _NONE), next(theirs, _NONE)
    return compared


def _count(by_label: dict[str, int], source: str) -> None:
    by_label[label_of(source)] = by_label.get(label_of(source), 0) + 1


def _texts(manifest: CorpusManifest) -> Iterator[tuple[str, tuple[bool, Any, str]]]:
    """Yield by id whether a text is held out, its tags and its source, in the order of the ids, as files have them."""
    trained = (row for shard in manifest.train for row in _rows(manifest, shard, held_out=False))
    yield from heapq.merge(trained, _rows(manifest, manifest.held_out, held_out=True), key=lambda row: row[0])


def _rows(manifest: CorpusManifest, shard: Shard, *, held_out: bool) -> Iterator[tuple[str, tuple[bool, Any, str]]]:
    path = manifest.folder / shard.name
    with reading(path, "not rows of a corpus"), path.open("rb") as file:
        for line in file:
            row = read_json(line)
            yield row["id"], (held_out, (row["stage"], row["domains"]), row["source"])
