"""Held-out loss: the mean cross entropy, in nats a token, of each item's text; of all items and by domain.

Reads checkpoints of the shipped trainers: the character model with NumPy, fine-tuned ones with torch and transformers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from .given import Given, NotGiven
from .items import Item
from .score_file import Line

METRIC = "loss"
TEXT_MAX = 20_000  # characters of an item that are read
LOSS_MAX = 1e6  # for a model that gives no number


class Language(Protocol):
    """A model as this scorer and the load test need it."""

    def loss(self, text: str) -> float:
        """Return the mean loss of a text, in nats a token; it may be anything if the model is broken."""

    def lost(self, text: str) -> str:
        """Return in a few words what the tokenizer loses of a text; nothing if it gives it back."""


def score(items: Sequence[Item], given: Given, metric: str) -> Iterator[Line]:
    """Score each item's ``text``; one with a domain counts for ``loss.domain`` as well."""
    model = load_model(given.needs_checkpoint(), given.options.base)
    for item in items:
        text = item.task.get("text")
        if not isinstance(text, str) or not text:
            raise NotGiven(f"item {item.id} has no text; held-out loss is that of each item's text")
        value = model.loss(text[:TEXT_MAX])
        told = "" if math.isfinite(value) else "the model gives no number"
        value = min(value, LOSS_MAX) if math.isfinite(value) else LOSS_MAX
        yield Line(item.id, item.cluster, metric, value, told)
        if item.domain and "." not in metric:
            yield Line(item.id, item.cluster, f"{metric}.{item.domain}", value, told)


def load_model(folder: Path, base: str | None) -> Language:
    """Return the model of a checkpoint. Raises NotGiven for a folder that no shipped trainer wrote."""
    if (folder / "weights.npy").is_file():
        from .characters import Characters

        return Characters(folder)
    if any((folder / name).is_file() for name in ("adapter_config.json", "config.json")):
        from .transformer import Transformer

        return Transformer(folder, base)
    raise NotGiven(
        f"{folder} has no checkpoint of a shipped trainer; score your own kind of model by a command of yours"
    )


def told(error: BaseException) -> str:
    """Return an error in a few words."""
    return f"{type(error).__name__}: {error}"[:300]
