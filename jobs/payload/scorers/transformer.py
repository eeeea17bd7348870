"""A checkpoint of finetune.py, whole or an adapter on its base, as scorers read it with torch and transformers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .given import NotGiven

if TYPE_CHECKING:
    from pathlib import Path

_TOKENS_MAX = 2_048
_WEIGHTS = (".safetensors", ".json", ".txt", ".model", ".jinja", ".pt")


class Transformer:
    """A causal language model. ``base`` is the folder of an adapter's base; by default what the adapter names."""

    def __init__(self, folder: Path, base: str | None) -> None:
        try:
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer
        except ImportError as error:
            raise NotGiven(f"{error}; add torch and transformers to the requirements of the evaluation") from None
        for path in folder.rglob("*"):
            # A pickle runs code when it is read: the optimiser's state is never read here, weights only as safetensors.
            if path.is_file() and path.suffix not in _WEIGHTS:
                raise NotGiven(f"{path.name} is no file of a checkpoint; weights are read as safetensors only")
        self._torch = torch
        options = {"use_safetensors": True, "trust_remote_code": False, "dtype": torch.float32}
        adapter = folder / "adapter_config.json"
        if adapter.is_file():
            from peft import PeftModel

            source = base or str(json.loads(adapter.read_bytes())["base_model_name_or_path"])
            whole = AutoModelForCausalLM.from_pretrained(source, **options)
            self._model: Any = PeftModel.from_pretrained(whole, str(folder), use_safetensors=True)
        else:
            source = str(folder)
            self._model = AutoModelForCausalLM.from_pretrained(source, **options)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model.to(self._device).eval()

    def loss(self, text: str) -> float:
        """Return the mean loss of a text's tokens after the first, of 2,048 at most."""
        torch = self._torch
        tokens = self._tokenizer(text, return_tensors="pt", truncation=True, max_length=_TOKENS_MAX).input_ids
        if tokens.shape[1] < 2:
            tokens = torch.cat([tokens, tokens], dim=1)
        tokens = tokens.to(self._device)
        with torch.no_grad():
            return float(self._model(input_ids=tokens, labels=tokens).loss)

    def lost(self, text: str) -> str:
        """Return what is not given back by encoding and decoding."""
        codes = self._tokenizer(text, add_special_tokens=False).input_ids
        again = self._tokenizer.decode(codes, clean_up_tokenization_spaces=False)
        return "" if again == text else f"came back as {again[:100]!r}"
