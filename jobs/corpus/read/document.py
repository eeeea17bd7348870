"""The unit of a corpus: one text with what is known about it; and long texts cut into units."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# A blank line followed by an unindented one: between top-level definitions, or between paragraphs.
_PAUSE = re.compile(r"\n[ \t]*\n(?=\S)")


@dataclass(frozen=True, slots=True)
class Document:
    """One text. `source` names the file it came from; `manager` is set when the record names one itself.

    `fields` are those by which trainers learn a part of it: messages, or prompt and completion, and so on.
    """

    text: str
    source: str
    line: int
    stage: str | None = None
    manager: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)


def split_text(text: str, limit: int) -> Iterator[tuple[int, str]]:
    """Pieces of at most `limit` characters that concatenate to `text`, each with its line offset.

    Cuts at the last pause in the second half of the limit, else at the last line end, else at the limit.
    """
    start = line = 0
    while start < len(text):
        end = start + limit
        if end < len(text):
            pauses = list(_PAUSE.finditer(text, start + limit // 2, end))
            newline = text.rfind("\n", start, end)
            if pauses:
                end = pauses[-1].end()
            elif newline > start:
                end = newline + 1
        else:
            end = len(text)
        yield line, text[start:end]
        line += text.count("\n", start, end)
        start = end
