"""What will be learned, reported and printed before the first step: figures, and samples with marks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from ..trainer_kit import Training
from .rows import Rows
from .tally import facts_told, training_data

SAMPLES = 3
_BEGIN, _END = "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}", "\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}"
UNWRITTEN = f"{_BEGIN}...{_END}"  # what the model writes itself and learns then
_TEXT_MAX = 320  # characters of a sample, half of them from its end
_REASON_MAX = 160  # characters of a reason or a place
_LINE_MAX = 4_000  # bytes of a report: a line of progress has fewer than 4 KiB


def describe(
    training: Training, facts: dict[str, Any], size: tuple[int, int], texts: Sequence[str], places: int = 0
) -> None:
    """Report and print what will be learned: ``facts`` of a tally, ``size`` in rows and tokens, and samples.

    ``places``: for so many tokens there is room in the rows; 0 where that is not known before.
    """
    data = training_data(facts, size, places)
    data_text = data
    for most in (_TEXT_MAX, 160, 80, 40, 20):  # a character may take twelve bytes
        reasons = [[why[:most][:_REASON_MAX], count, at[-most:][-_REASON_MAX:]] for why, count, at in data["left_out"]]
        data_text = {**data, "left_out": reasons, "samples": [_cut(text, most) for text in texts]}
        if len(json.dumps(data_text)) < _LINE_MAX:
            break
    training.describe_data(data_text)
    lines = [f"sample {number}: {_cut(text, _TEXT_MAX)!r}" for number, text in enumerate(texts, 1)]
    print("\n".join(f"finetune: {line}" for line in (facts_told(data), *lines)), flush=True)


def spread(count: int) -> list[int]:
    """Return up to three places among ``count``: of samples."""
    return sorted({count * part // SAMPLES for part in range(SAMPLES)} if count else ())


def samples(rows: Rows, tokenizer: Any) -> list[str]:
    """Return the first document of up to three rows; what is learned stands in white brackets."""
    texts = []
    for index in spread(len(rows)):
        batch = rows.batch([index])
        size = int(np.count_nonzero(batch.documents[0] == batch.documents[0, 0]))
        learned = np.concatenate(([False], batch.targets[0, : size - 1] >= 0))
        texts.append(_marked(batch.tokens[0, :size], learned, tokenizer))
    return texts


def learned_after(text: str, whole: str) -> str:
    """Return the part of ``whole`` that is learned after ``text``, which begins it, in white brackets."""
    same = next((at for at, pair in enumerate(zip(text, whole, strict=False)) if pair[0] != pair[1]), len(text))
    return f"{_BEGIN}{whole[same:]}{_END}"


def _marked(tokens: Any, learned: Any, tokenizer: Any) -> str:
    text = ""
    for is_learned, part in groupby(zip(tokens.tolist(), learned.tolist(), strict=True), key=lambda pair: pair[1]):
        decoded = tokenizer.decode([token for token, _ in part], skip_special_tokens=False)
        text += f"{_BEGIN}{decoded}{_END}" if is_learned else decoded
    return text


def _cut(text: str, most: int) -> str:
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} [...] {text[-half:]}"
