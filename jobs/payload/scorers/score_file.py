"""Score files: a header that names what was judged by what, then one item and metric a line. Sessions write them.

The file appears under its name when it is whole; :mod:`jobs.scores` reads it and says what a line may hold.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
EXAMPLE_MAX = 500  # characters


@dataclass(frozen=True, slots=True)
class Line:
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
        said: dict[str, Any] = {"schema": SCHEMA, "model": self.model, "checkpoint": self.checkpoint}
        said |= {"set": self.set, "scorer": self.scorer}
        if self.agreement:
            said["agreement"] = {metric: [list(row) for row in table] for metric, table in self.agreement.items()}
        return said | ({"notes": list(self.notes)} if self.notes else {})


def write_scores(path: Path, header: Header, lines: Iterable[Line]) -> int:
    """Write a score file and return how many scores it has. Raises ValueError for a value that is not finite."""
    partial = path.with_name(path.name + ".partial")
    count = 0
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(json.dumps(header.document()) + "\n")
        for line in lines:
            if not math.isfinite(line.value):
                raise ValueError(f"{line.metric} of {line.item} is {line.value}: a score is a finite number")
            said = {"item": line.item, "cluster": line.cluster, "metric": line.metric, "value": line.value}
            if line.example:
                said["example"] = line.example[:EXAMPLE_MAX]
            stream.write(json.dumps(said, ensure_ascii=True) + "\n")
            count += 1
        stream.flush()
        os.fsync(stream.fileno())
    partial.rename(path)
    return count
