"""How the documents of a packed row are kept apart, by family of models.

An attention layer is given a mask. Recurrent and convolution layers carry a state from one token to the next, which no
mask stops: their documents get a row each. So does every family that tests/training/test_families.py does not compute.
"""

from __future__ import annotations

from typing import Any

MASK, POSITIONS, ALONE = "mask", "positions", "alone"
# Families whose layers obey a mask of all earlier tokens of the document.
_OBEY_MASKS = frozenset({
    "arcee", "codegen", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "ernie4_5", "exaone4", "gemma", "gemma2",
    "gemma3_text", "gemma4_text", "glm", "glm4", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss", "gptj",
    "granite", "granitemoe", "helium", "llama", "llama4_text", "ministral", "mistral", "mixtral", "mpt", "olmo",
    "olmo2", "olmo3", "opt", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3",
    "stablelm", "starcoder2",
})  # fmt: skip
# Families that make masks of their own, with windows, from positions that begin again at each document.
_READ_POSITIONS = frozenset({
    "cohere2", "exaone4", "gemma2", "gemma3_text", "gemma4_text", "llama4_text", "ministral", "mistral", "mixtral",
    "olmo3", "phi3", "qwen2", "qwen3", "smollm3", "starcoder2",
})  # fmt: skip
_WINDOWED = ("sliding_attention", "chunked_attention")


def separation(config: Any, length: int) -> str:
    """Return how documents in a row of ``length`` tokens are kept apart: by MASK or POSITIONS, or each has its row."""
    kind = config.model_type
    if _has_window(config, length):
        return POSITIONS if kind in _READ_POSITIONS and _masks_come_from_positions() else ALONE
    return MASK if kind in _OBEY_MASKS else ALONE


def _has_window(config: Any, length: int) -> bool:
    """Return whether a layer sees fewer tokens than a row has: a mask of ours would undo its window."""
    layers = getattr(config, "layer_types", None)
    if getattr(config, "use_sliding_window", True) is False and not set(layers or ()) & set(_WINDOWED):
        return False
    if layers is not None and not set(layers) & set(_WINDOWED):
        return False
    sizes = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    return any(size is not None and size < length for size in sizes)


def _masks_come_from_positions() -> bool:
    """Return whether this version of transformers finds packed documents by their positions (4.53 and later)."""
    try:
        from transformers.masking_utils import find_packed_sequence_indices  # noqa: F401
    except ImportError:
        return False
    return True
