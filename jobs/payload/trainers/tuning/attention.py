"""Attention within packed documents by torch's variable-length kernel, which gets the ends of documents.

The kernel skips all pairs of tokens of different documents. With a mask, torch computes those pairs too, which takes
four times as long in deterministic mode.
"""

import argparse
import sys
from typing import Any

import numpy as np
import torch

from .devices.card import Device
from .errors import say

NAME = "documents apart"
_KINDS = ("llama", "mistral", "qwen2", "qwen3")  # families with full attention that pass on unknown arguments
_WIDEST = 256  # largest head size of the kernel


def is_apart(options: argparse.Namespace, source: str, card: Device) -> bool:
    """Return whether the kernel separates the documents of a row by their ends; if not, a mask separates them."""
    # Other stages pad rows, and padding needs a mask.
    if options.stage != "sft" or not card.accelerated or card.precision != "bf16" or _kernel() is None:
        return False
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source)
    if config.model_type not in _KINDS:
        return False
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return (
        getattr(config, "sliding_window", None) is None
        and not getattr(config, "attention_dropout", 0.0)
        and size <= _WIDEST
        and _runs(card, size)
    )


def _runs(card: Device, size: int) -> bool:
    """Return whether the kernel runs on this device, forward and backward. Not every build of torch has it."""
    ends = torch.tensor([0, 3, 8], dtype=torch.int32, device=card.device)
    parts = [torch.ones(8, 1, size, dtype=card.dtype, device=card.device, requires_grad=True) for _ in range(3)]
    try:
        _kernel()(*parts, ends, ends, 5, 5, scale=1.0, window_size=(-1, 0)).sum().backward()
    except RuntimeError as error:
        first_line = str(error).partition("\n")[0]
        say(f"documents of a row are separated by a mask: torch has no kernel for {card.name} ({first_line})")
        return False
    return True


def tell_apart(model: Any) -> None:
    """Register ``attend`` with transformers and set it as the attention function of a model."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)
    model.set_attn_implementation(NAME)


def document_ends(positions: np.ndarray[Any, Any], device: str) -> Any:
    """Return the offsets at which documents end, int32 (documents + 1), from ``positions`` (rows, length)."""
    ends = np.append(np.flatnonzero(positions.ravel() == 0), positions.size).astype(np.int32)
    offsets = torch.from_numpy(ends).to(device, non_blocking=True)
    if "torch._dynamo" in sys.modules:  # compiled layers must not compile again for each number of documents
        torch._dynamo.maybe_mark_dynamic(offsets, 0)  # noqa: SLF001 - its documented name
    return offsets


def attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    *,
    scaling: float | None = None,
    document_ends: Any = None,
    **more: Any,
) -> tuple[Any, None]:
    """Attend causally within documents; without ``document_ends``, call transformers' SDPA attention.

    ``query`` is (rows, heads, length, size); ``key`` and ``value`` may have fewer heads. Return (rows, length, heads,
    size), and None for the attention weights.
    """
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    if document_ends is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **more)  # type: ignore[no-any-return]
    rows, heads, length, size = query.shape
    shared = heads // key.shape[1]
    flat = (
        part.transpose(1, 2).reshape(rows * length, heads, size).to(value.dtype)  # rotary positions return fp32
        for part in (query, repeat_kv(key, shared), repeat_kv(value, shared))
    )
    out = _kernel()(*flat, document_ends, document_ends, length, length, scale=scaling, window_size=(-1, 0))
    return out.view(rows, length, heads, size), None


def _kernel() -> Any:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:  # before torch 2.10
        return None
    return varlen_attn
