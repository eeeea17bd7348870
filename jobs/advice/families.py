"""Families of decoders whose parameters formulas count exactly: how each differs from Llama, by its ``model_type``.

A test counts a small model of each on transformers' meta device. A family that is not here is refused: counted as
Llama, Qwen3.5 came out at three quarters of its size, and StarCoder2 at 137 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Family:
    """Differences from Llama. Norms are counted in vectors of the hidden width, a bias of a norm as one more."""

    gated: bool = True  # the MLP has three products
    norms: int = 2  # in a block
    last: int = 1  # after the last block
    query_norms: str = ""  # of queries and keys: "head", one of a head's width each; "all", of their whole width
    qkv_bias: str = "attention_bias"  # the key that switches biases of queries, keys and values on; "yes": always
    out_bias: str = "attention_bias"  # of the attention's output
    mlp_bias: str = ""
    head_bias: bool = False
    biased: tuple[str, ...] = ()  # the keys of biases that are on where they are absent
    tied: bool = False  # what tie_word_embeddings says where it is absent
    head_dim: int = 0  # the width of a head where the config does not say it; 0: hidden / heads
    unlike: tuple[str, ...] = ()  # keys that must be off: with them the formula is not exact

    def inside(self, config: Mapping[str, Any], hidden: int, queries: int, keys: int, heads: int, between: int) -> int:
        """Return the values of a block beside its products, its queries' biases and two norms."""
        head = queries // heads
        found = (self.norms - 2) * hidden
        found += {"": 0, "head": 2 * head, "all": queries + keys}[self.query_norms]
        found += hidden if self.is_on(config, self.out_bias) else 0
        if self.is_on(config, self.mlp_bias):
            found += hidden + between * (2 if self.gated else 1)
        return found

    def outside(self, hidden: int, words: int) -> int:
        """Return the values outside the blocks beside embedding, head and one norm."""
        return (self.last - 1) * hidden + (words if self.head_bias else 0)

    def normed(self, hidden: int, heads: int) -> int:
        """Return the values of a token that norms beside two are applied to; ``heads``: widths of queries and keys."""
        more = (self.norms - 2) * hidden if self.last == 1 and self.norms > 2 else 0  # else the vectors are biases
        return more + (heads if self.query_norms else 0)

    def is_on(self, config: Mapping[str, Any], key: str) -> bool:
        """Tell whether a config switches a bias on."""
        return key == "yes" or bool(key and config.get(key, key in self.biased))


_LLAMA = Family(mlp_bias="mlp_bias")
_PLAIN = Family(qkv_bias="", out_bias="")
_QWEN2 = Family(qkv_bias="yes", out_bias="")

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": _PLAIN,
    "ministral3": Family(qkv_bias="", out_bias="", head_dim=128),
    "qwen": _QWEN2,
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen3": Family(query_norms="head", head_dim=128),
    "gemma": Family(tied=True, head_dim=256),
    "gemma2": Family(norms=4, tied=True, head_dim=256, unlike=("attn_logit_softcapping",)),
    "gemma3_text": Family(norms=4, query_norms="head", tied=True, head_dim=256),
    "phi": Family(
        gated=False, norms=2, last=2, qkv_bias="yes", out_bias="yes", mlp_bias="yes", head_bias=True,
        unlike=("qk_layernorm",),
    ),
    "phi3": _PLAIN,
    "starcoder2": Family(
        gated=False, norms=4, last=2, tied=True,
        qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", biased=("use_bias",),
    ),
    "gpt_neox": Family(gated=False, norms=4, last=2, mlp_bias="yes", biased=("attention_bias",)),
    "stablelm": Family(
        norms=4, last=2, qkv_bias="use_qkv_bias", out_bias="", unlike=("qk_layernorm", "use_parallel_residual")
    ),
    "granite": _LLAMA,
    "olmo": Family(norms=0, last=0),
    "olmo2": Family(query_norms="all"),
    "olmo3": Family(query_norms="all"),
    "cohere": Family(norms=1, tied=True, unlike=("use_qk_norm",)),
    "cohere2": Family(norms=1, tied=True),
    "glm": Family(out_bias="", biased=("attention_bias",), head_dim=128),
    "glm4": Family(norms=4, out_bias="", biased=("attention_bias",), head_dim=128),
    "exaone4": Family(query_norms="head", qkv_bias="", out_bias=""),
    "smollm3": Family(mlp_bias="mlp_bias", tied=True),
    "seed_oss": Family(
        out_bias="attention_out_bias", mlp_bias="mlp_bias", biased=("attention_bias",), head_dim=128,
        unlike=("attention_dropout", "residual_dropout"),
    ),
    "ernie4_5": Family(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", tied=True, head_dim=128),
    "arcee": Family(gated=False, mlp_bias="mlp_bias"),
    "nemotron": Family(gated=False, norms=4, last=2, mlp_bias="mlp_bias"),
    "cwm": Family(qkv_bias="", out_bias="", head_dim=128),
}  # fmt: skip
"""The families by the ``model_type`` of their config.json."""
