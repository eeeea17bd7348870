"""Questions to any address that speaks OpenAI's chat completions, and its answers as text."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from ..deadline import exchange
from .given import NotGiven
from .items import ItemSet

_ANSWER_BYTES_MAX = 4 << 20
_SECONDS = 120.0


class NoChatAnswer(RuntimeError):
    """The address did not answer, or not as it should; the message says what came."""


def ask(address: str, model: str, prompt: str, *, key: str, tokens_max: int = 1_024) -> str:
    """Return the answer to one prompt, at temperature 0; ``key`` names the secret's variable. Raises NoChatAnswer."""
    if not address.startswith(("http://", "https://")):
        raise NotGiven(f"{address!r} is no address; write it like https://host/v1")
    document = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": tokens_max,
    }
    headers = {"Content-Type": "application/json"}
    if secret := os.environ.get(key):
        headers["Authorization"] = f"Bearer {secret}"
    request = urllib.request.Request(  # noqa: S310 - checked above
        address.rstrip("/") + "/chat/completions", json.dumps(document).encode(), headers
    )
    try:
        answer = exchange(request, _SECONDS, _ANSWER_BYTES_MAX)
    except (OSError, HTTPException, ValueError) as error:
        raise NoChatAnswer(f"{address} does not answer: {error}") from None
    if answer.status != 200:
        raise NoChatAnswer(f"{address} does not answer: HTTP {answer.status}")
    try:
        content = json.loads(answer.body)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise NoChatAnswer(f"{address} answers with something else than a completion") from None
    if not isinstance(content, str):
        raise NoChatAnswer(f"{address} answers with something else than a text")
    return content


# What a served model writes when it is asked each item's prompt; kept beside the scores, which are of that.
KEY = "MODEL_API_KEY"
KEPT = "outputs.jsonl"
_TOKENS_MAX = 4_096


def ask_all(item_set: ItemSet, address: str, model: str | None, folder: Path) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Return the model's output of each item that has a ``prompt``. Raises NoChatAnswer at the first that gets none."""
    if not model:
        raise NotGiven("which model is to be asked? give --ask-model NAME")
    result: dict[str, Sequence[Mapping[str, Any]]] = {}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / KEPT).open("w", encoding="utf-8") as stream:
        for item in item_set.items.values():
            prompt = item.task.get("prompt")
            if isinstance(prompt, str):
                output = ask(address, model, prompt, key=KEY, tokens_max=_TOKENS_MAX)
                record = {"id": item.id, "output": output}
                stream.write(json.dumps(record) + "\n")
                result[item.id] = [record]
    if not result:
        raise NotGiven("no item of the test set has a prompt that a model could be asked")
    return result
