"""The unit of a corpus: one text with what is known about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Document:
    """One text. `source` names the file it came from; `manager` is set when the record names one itself."""

    text: str
    source: str
    line: int
    stage: str | None = None
    manager: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
