"""Tiny models of the families that people fine-tune, with random weights: what a promise is tested on."""

from collections.abc import Mapping
from typing import Any

import pytest

from jobs.payload.trainers.tuning import model

VOCABULARY = 97
# Layers of these families carry a state from one document of a row to the next.
RECURRENT = [
    "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "lfm2", "mamba", "mamba2", "minimax",
    "nemotron_h", "olmo_hybrid", "qwen3_5_text", "qwen3_next", "recurrent_gemma", "rwkv",
]  # fmt: skip
PACKED = sorted(model._OBEY_MASKS)
NAMED = sorted({*PACKED, *RECURRENT})
_SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 16, "n_embd": 64,
    "n_layer": 4, "n_head": 4, "n_positions": 128, "d_model": 64, "n_heads": 4, "n_layers": 4, "max_seq_len": 128,
    "ffn_dim": 96, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_local_experts": 4,
    "shared_expert_intermediate_size": 32, "mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 32,
    "mamba_n_groups": 1, "mamba_chunk_size": 16, "mamba_d_ssm": 128, "state_size": 8, "expand": 2,
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "lru_width": 64, "query_pre_attn_scalar": 16,
    "word_embed_proj_dim": 64, "rotary_dim": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16,
}  # fmt: skip
_DEEPSEEK = {"num_key_value_heads": 4, "first_k_dense_replace": 1}
_OWN: Mapping[str, Mapping[str, Any]] = {
    "deepseek_v2": _DEEPSEEK, "deepseek_v3": _DEEPSEEK,
    "bamba": {"attn_layer_indices": [1]},
    "falcon": {"num_kv_heads": 2, "new_decoder_architecture": True},
    "gemma4_text": {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 97},
    "gpt_neo": {"num_layers": 4, "attention_types": [[["global", "local"], 2]], "window_size": 64, "num_heads": 4},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "llama4_text": {"intermediate_size_mlp": 96, "attention_chunk_size": 64},
    "mamba2": {"head_dim": 32, "num_heads": 4, "n_groups": 1, "chunk_size": 16},
    "nemotron_h": {
        "hybrid_override_pattern": "M*M-", "mamba_num_heads": 4, "mamba_head_dim": 32, "ssm_state_size": 8,
        "n_groups": 1, "chunk_size": 16,
    },
    "recurrent_gemma": {"attention_window_size": 64},
    "rwkv": {"attention_hidden_size": 64},
}  # fmt: skip


def known(family: str) -> str:
    """Skip a family that this version of transformers does not have."""
    import transformers

    if family not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {family}")
    return family


def family_config(family: str, **more: Any) -> Any:
    """Return the configuration of a tiny model of a family; values that the family does not have are left out."""
    import transformers

    kind = transformers.CONFIG_MAPPING[family]
    own = {**_OWN.get(family, {}), **more}
    names = {*kind().to_dict(), *kind.attribute_map}
    names -= {"layer_types"}
    return kind(**{name: value for name, value in _SHAPE.items() if name in names and name not in own}, **own)


def family_model(config: Any) -> Any:
    """Return a model whose weights are large enough that each token matters to those after it."""
    import torch
    import transformers

    transformers.set_seed(1)
    try:
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    except (ValueError, ImportError):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for part in model.parameters():
            if part.dim() > 1:
                part.mul_(4)
    return model.float().eval()
