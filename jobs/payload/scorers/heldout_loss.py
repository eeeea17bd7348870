"""Held-out loss: the mean cross entropy of each item's text, in nats per token, over all items and by domain.

It reads checkpoints of the shipped trainers: of the character model with NumPy, of others with torch and transformers.
"""

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from .given import NotGiven, ScorerInput
from .items import Item, ScoreLine

METRIC = "loss"
TEXT_MAX = 20_000  # characters per item
LOSS_MAX = 1e6  # the score instead of NaN and infinity


class Language(Protocol):
    """What this scorer and the load test need of a model."""

    def loss(self, text: str) -> float:
        """Return the mean loss of a text, in nats per token; NaN or infinity if the model is broken."""

    def lost(self, text: str) -> str:
        """Return a short description of what the tokenizer loses of a text; "" if it loses nothing."""


def score(items: Sequence[Item], candidate: ScorerInput, metric: str) -> Iterator[ScoreLine]:
    """Score each item's ``text``; an item with a domain also scores the metric ``loss.DOMAIN``."""
    model = load_model(candidate.needs_checkpoint(), candidate.options.base)
    for item in items:
        text = item.task.get("text")
        if not isinstance(text, str) or not text:
            raise NotGiven(f"item {item.id} has no text; each item needs one for held-out loss")
        value = model.loss(text[:TEXT_MAX])
        why = "" if math.isfinite(value) else "the loss is not a finite number"
        value = min(value, LOSS_MAX) if math.isfinite(value) else LOSS_MAX
        yield ScoreLine(item.id, item.cluster, metric, value, why)
        if item.domain and "." not in metric:
            yield ScoreLine(item.id, item.cluster, f"{metric}.{item.domain}", value, why)


def load_model(folder: Path, base: str | None) -> Language:
    """Return the model of a checkpoint. Raises NotGiven if no shipped trainer wrote it."""
    if (folder / "weights.npy").is_file():
        return Characters(folder)
    if any((folder / name).is_file() for name in ("adapter_config.json", "config.json")):
        return Transformer(folder, base)
    raise NotGiven(
        f"{folder} has no checkpoint of a shipped trainer; score your own kind of model by a command of yours"
    )


# Checkpoints of finetune.py: a whole model, or an adapter for its base.
_TOKENS_MAX = 2_048
# A pickle runs code when it is loaded: weights are read as safetensors only, and the optimiser state is not read.
_UNSAFE_SUFFIXES = (".bin", ".pkl", ".pickle", ".pth", ".ckpt", ".py", ".h5", ".msgpack")


class Transformer:
    """A causal language model. ``base`` is the folder of an adapter's base, or ``input:NAME`` as in training."""

    def __init__(self, folder: Path, base: str | None) -> None:
        for path in folder.rglob("*"):
            if path.suffix in _UNSAFE_SUFFIXES:
                raise NotGiven(f"{path.name} in the checkpoint may run code; store weights as safetensors only")
        try:
            import torch
            from transformers import AutoModelForCausalLM

            from ..trainers.tuning.base import base_digest
            from ..trainers.tuning.data.documents import first_lost, load_tokenizer
        except ImportError as error:
            raise NotGiven(f"{error}; add torch and transformers to the evaluation's requirements") from None
        self._torch, self._first_lost = torch, first_lost
        adapter = (folder / "adapter_config.json").is_file()
        source = _base(folder, base) if adapter else str(folder)
        trained_on = _trained_on(folder) if adapter else None
        if trained_on is not None and base_digest(source) != trained_on:
            raise NotGiven(f"{source} is another base than this adapter was trained on; give that base by --base")
        options: dict[str, Any] = {"use_safetensors": True, "trust_remote_code": False, "dtype": torch.float32}
        try:
            self._model: Any = AutoModelForCausalLM.from_pretrained(source, **options)
            if adapter:
                from peft import PeftModel

                self._model = PeftModel.from_pretrained(self._model, str(folder), use_safetensors=True)
            self._tokenizer: Any = load_tokenizer(source)
        except Exception as error:  # each of four libraries has errors of its own
            raise NotGiven(f"{folder} does not load: {type(error).__name__}: {error}"[:500]) from error
        for name, part in self._model.named_parameters():
            if not torch.isfinite(part).all():
                raise NotGiven(f"{name} holds values that are not finite")
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model.to(self._device).eval()

    def loss(self, text: str) -> float:
        """Return the mean loss of a text's tokens, in nats; only its first 2,048 tokens count."""
        torch = self._torch
        codes = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        start = self._tokenizer.bos_token_id
        codes = ([start] if start is not None else codes[:1]) + codes
        tokens = torch.tensor([codes[:_TOKENS_MAX]], device=self._device)
        with torch.no_grad():
            return float(self._model(input_ids=tokens, labels=tokens).loss)

    def complete(self, prompt: str, count: int) -> tuple[list[str], list[float]]:
        """Return the next tokens by greedy decoding, as texts, and the log-probability of each."""
        torch = self._torch
        codes = list(self._tokenizer(prompt)["input_ids"])
        tokens, logprobs = [], []
        with torch.no_grad():
            for _ in range(count):
                logits = self._model(input_ids=torch.tensor([codes], device=self._device)).logits[0, -1].float()
                code = int(logits.argmax())
                logprobs.append(float(torch.log_softmax(logits, -1)[code]))
                tokens.append(str(self._tokenizer.decode([code])))
                codes.append(code)
        return tokens, logprobs

    def lost(self, text: str) -> str:
        """See Language."""
        lost = self._first_lost(self._tokenizer, [text])
        return "" if lost is None else f"came back as {lost[1][:100]!r}"


def _base(folder: Path, base: str | None) -> str:
    """Return the folder of the base. An adapter also names a path, which is of another machine and not used."""
    if base is not None and base.startswith("input:"):
        base = os.environ.get(f"SCHED_INPUT_{base.removeprefix('input:').upper().replace('-', '_')}")
    if not base or not Path(base).is_dir():
        raise NotGiven(f"{folder} has an adapter, and no folder of its base is given; give --base FOLDER or input:NAME")
    return base


def _trained_on(folder: Path) -> str | None:
    """Return the digest of the base that an adapter was trained on; None if the checkpoint does not record it."""
    path = folder / "fingerprint.json"
    return str(json.loads(path.read_bytes())["job"]["model"]) if path.is_file() else None


_NEWLINE = 1  # code of the newline that precedes a text, as in training


class Characters:
    """A model of charlm.py. Its alphabet is ASCII; all other bytes share one code, which counts in the loss."""

    def __init__(self, folder: Path) -> None:
        try:
            import numpy as np
        except ImportError:
            raise NotGiven("the character model needs NumPy; add numpy to the evaluation's requirements") from None
        from ..trainers import charlm

        self._np, self._charlm = np, charlm
        try:
            shape = charlm.CharShape(*json.loads((folder / "state.json").read_bytes())["shape"])
            weights = np.load(folder / "weights.npy", allow_pickle=False)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NotGiven(f"the checkpoint in {folder} cannot be read: {error}") from None
        self._model = charlm.CharModel(shape, np.random.default_rng(0))
        if weights.shape != self._model.weights.shape or weights.dtype != np.float32:
            raise NotGiven(f"weights.npy holds {weights.shape} of {weights.dtype}, not {self._model.weights.shape}")
        if not np.isfinite(weights).all():
            raise NotGiven("weights.npy holds values that are not finite")
        self._model.weights[:] = weights

    def loss(self, text: str) -> float:
        """Return the mean loss of a text's characters, in nats; a newline precedes the first."""
        np, context = self._np, self._model.shape.context
        codes = np.concatenate([np.full(context, _NEWLINE, np.uint8), self._charlm.encode(iter([text]))])
        return self._model.loss(np.lib.stride_tricks.sliding_window_view(codes, context + 1))

    def lost(self, text: str) -> str:
        """See Language."""
        unknown = sum(code == 0 for code in self._charlm.encode(iter([text])).tolist())
        return f"{unknown} bytes are not in its alphabet" if unknown else ""
