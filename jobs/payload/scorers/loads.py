"""The load test: a checkpoint must load, give a finite loss, and have a tokenizer that decodes what it encodes.

An item scores 1 if all three are true for its ``text``, else 0.
"""

import json
import math
from collections.abc import Iterator, Sequence

from .given import NotGiven, ScorerInput, output_path
from .heldout_loss import TEXT_MAX, Language, load_model
from .items import Item, ScoreLine

METRIC = "loads"
_PROBE_TOKENS = 16


def score(items: Sequence[Item], candidate: ScorerInput, metric: str) -> Iterator[ScoreLine]:
    """Score each item; if the checkpoint does not load, all items score 0."""
    folder = candidate.needs_checkpoint()
    model: Language | None = None
    why = ""
    try:
        model = load_model(folder, candidate.options.base)
    except (NotGiven, OSError, ValueError, RuntimeError, KeyError) as error:
        why = f"it does not load: {type(error).__name__}: {error}"
    if candidate.options.probe:
        _write_probe(model, candidate)
    for item in items:
        text = str(item.task.get("text") or "x = 1\n")[:TEXT_MAX]
        fault = why if model is None else _fault(model, text)
        yield ScoreLine(item.id, item.cluster, metric, float(not fault), fault)


def _write_probe(model: Language | None, candidate: ScorerInput) -> None:
    """Write the model's tokens for a fixed prompt, so that a deployment can compare a server's answer."""
    generate = getattr(model, "complete", None)
    if generate is None:
        raise NotGiven("--probe needs a transformer, and this checkpoint is none that loads")
    tokens, logprobs = generate(candidate.options.probe, _PROBE_TOKENS)
    path = output_path(candidate.options).with_name("probe.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"prompt": candidate.options.probe, "tokens": tokens, "logprobs": logprobs}
    path.write_text(json.dumps(data) + "\n", encoding="utf-8")


def _fault(model: Language, text: str) -> str:
    """Return what is wrong with a loaded model; "" if it passes."""
    if not math.isfinite(model.loss(text)):
        return "its loss is not a finite number"
    return model.lost(text)
