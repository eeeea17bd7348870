"""The load test: whether a checkpoint loads, gives a finite loss, and its tokenizer decodes what it encodes.

An item's ``text`` scores 1 if all three are true.
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
    """Score each item; a checkpoint that does not load scores 0 for all of them."""
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
    """Write the model's tokens for a fixed prompt, with which a deployer compares a server's answer."""
    generate = getattr(model, "complete", None)
    if generate is None:
        raise NotGiven("--probe records tokens of a transformer, and this checkpoint is none that loads")
    tokens, worth = generate(candidate.options.probe, _PROBE_TOKENS)
    path = output_path(candidate.options).with_name("probe.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"prompt": candidate.options.probe, "tokens": tokens, "logprobs": worth}
    path.write_text(json.dumps(data) + "\n", encoding="utf-8")


def _fault(model: Language, text: str) -> str:
    if not math.isfinite(model.loss(text)):
        return "it gives no number"
    return model.lost(text)
