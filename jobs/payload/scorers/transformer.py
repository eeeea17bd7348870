"""A checkpoint of finetune.py, whole or an adapter on its base, as scorers read it with torch and transformers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .given import NotGiven

_TOKENS_MAX = 2_048
# A pickle runs code when it is read: weights are read as safetensors only, the optimiser's state not at all.
_NEVER = (".bin", ".pkl", ".pickle", ".pth", ".ckpt", ".py", ".h5", ".msgpack")


class Transformer:
    """A causal language model. ``base`` is the folder of an adapter's base, or ``input:NAME``, as in training."""

    def __init__(self, folder: Path, base: str | None) -> None:
        for path in folder.rglob("*"):
            if path.suffix in _NEVER:
                raise NotGiven(f"{path.name} is no file of a checkpoint; weights are read as safetensors only")
        try:
            import torch
            from transformers import AutoModelForCausalLM

            from ..trainers.tuning.model import base_digest
            from ..trainers.tuning.tokenizer import first_lost, load_tokenizer
        except ImportError as error:
            raise NotGiven(f"{error}; add torch and transformers to the evaluation's requirements") from None
        self._torch, self._first_lost = torch, first_lost
        adapter = (folder / "adapter_config.json").is_file()
        source = _base(folder, base) if adapter else str(folder)
        trained_on = _trained_on(folder) if adapter else None
        if trained_on is not None and base_digest(source) != trained_on:
            raise NotGiven(f"{source} is another base than this adapter was trained on; give that one by --base")
        options: dict[str, Any] = {"use_safetensors": True, "trust_remote_code": False, "dtype": torch.float32}
        try:
            self._model: Any = AutoModelForCausalLM.from_pretrained(source, **options)
            if adapter:
                from peft import PeftModel

                self._model = PeftModel.from_pretrained(self._model, str(folder), use_safetensors=True)
            self._tokenizer: Any = load_tokenizer(source)
        except Exception as error:  # four libraries, each with errors of its own
            raise NotGiven(f"{folder} does not load: {type(error).__name__}: {error}"[:500]) from error
        for name, part in self._model.named_parameters():
            if not torch.isfinite(part).all():
                raise NotGiven(f"{name} holds values that are not finite")
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model.to(self._device).eval()

    def loss(self, text: str) -> float:
        """Return the mean loss of a text's tokens after the first, of 2,048 at most."""
        torch = self._torch
        codes = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        start = self._tokenizer.bos_token_id
        codes = ([start] if start is not None else codes[:1]) + codes
        tokens = torch.tensor([codes[:_TOKENS_MAX]], device=self._device)
        with torch.no_grad():
            return float(self._model(input_ids=tokens, labels=tokens).loss)

    def said(self, prompt: str, count: int) -> tuple[list[str], list[float]]:
        """Return the likeliest next tokens, one by one, as texts, and the log-probability of each."""
        torch = self._torch
        codes = list(self._tokenizer(prompt)["input_ids"])
        tokens, worth = [], []
        with torch.no_grad():
            for _ in range(count):
                logits = self._model(input_ids=torch.tensor([codes], device=self._device)).logits[0, -1].float()
                code = int(logits.argmax())
                worth.append(float(torch.log_softmax(logits, -1)[code]))
                tokens.append(str(self._tokenizer.decode([code])))
                codes.append(code)
        return tokens, worth

    def lost(self, text: str) -> str:
        """Return what is not given back by encoding and decoding."""
        lost = self._first_lost(self._tokenizer, [text])
        return "" if lost is None else f"came back as {lost[1][:100]!r}"


def _base(folder: Path, base: str | None) -> str:
    """Return where the base lies. What an adapter names is a path of the machine that trained it, and is not asked."""
    if base is not None and base.startswith("input:"):
        base = os.environ.get(f"SCHED_INPUT_{base.removeprefix('input:').upper().replace('-', '_')}")
    if not base or not Path(base).is_dir():
        raise NotGiven(f"{folder} has an adapter, and no folder of its base is given; give --base FOLDER or input:NAME")
    return base


def _trained_on(folder: Path) -> str | None:
    """Return the digest of the base that a checkpoint was trained on; None where none was kept."""
    path = folder / "fingerprint.json"
    return str(json.loads(path.read_bytes())["job"]["model"]) if path.is_file() else None
