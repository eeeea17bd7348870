"""What a served model writes when it is asked each item's prompt; kept beside the scores, which are of that."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .chat import ask
from .given import NotGiven
from .items import ItemSet

KEY = "MODEL_API_KEY"
KEPT = "outputs.jsonl"
_TOKENS_MAX = 4_096


def ask_all(item_set: ItemSet, address: str, model: str | None, folder: Path) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Return the model's output of each item that has a ``prompt``. Raises NoAnswer at the first that gets none."""
    if not model:
        raise NotGiven("which model is to be asked? give --ask-model NAME")
    found: dict[str, Sequence[Mapping[str, Any]]] = {}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / KEPT).open("w", encoding="utf-8") as stream:
        for item in item_set.items.values():
            prompt = item.task.get("prompt")
            if isinstance(prompt, str):
                output = ask(address, model, prompt, key=KEY, tokens_max=_TOKENS_MAX)
                record = {"id": item.id, "output": output}
                stream.write(json.dumps(record) + "\n")
                found[item.id] = [record]
    if not found:
        raise NotGiven("no item of the test set has a prompt that a model could be asked")
    return found
