"""Samples of what will be learned, as text in which the learned parts are marked."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .rows import Rows

SAMPLES = 3
_BEGIN, _END = "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}", "\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}"
_SHOWN = 400  # characters of a sample, half of them from its end


def samples(rows: Rows, tokenizer: Any) -> list[str]:
    """Return the first document of up to three rows, on one line each; what is learned stands in white brackets."""
    told = []
    for index in sorted({len(rows) * part // SAMPLES for part in range(SAMPLES)} if len(rows) else ()):
        batch = rows.batch([index])
        size = int(np.count_nonzero(batch.documents[0] == batch.documents[0, 0]))
        learned = np.concatenate(([False], batch.targets[0, : size - 1] >= 0))
        told.append(f"sample of row {index}: {_cut(_marked(batch.tokens[0, :size], learned, tokenizer))!r}")
    return told


def _marked(tokens: Any, learned: Any, tokenizer: Any) -> str:
    text = ""
    for is_learned, part in groupby(zip(tokens.tolist(), learned.tolist(), strict=True), key=lambda pair: pair[1]):
        said = tokenizer.decode([token for token, _ in part], skip_special_tokens=False)
        text += f"{_BEGIN}{said}{_END}" if is_learned else said
    return text


def _cut(text: str) -> str:
    half = _SHOWN // 2
    return text if len(text) <= _SHOWN else f"{text[:half]} [...] {text[-half:]}"
