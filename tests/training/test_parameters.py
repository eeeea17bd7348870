"""Parameters of 40 families: what the adviser counts is what transformers makes on the meta device, or it refuses."""

from typing import Any

import pytest

from jobs.advice.shape import FAMILIES, from_config
from jobs.problem import NotFound

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"intermediate_size": 176, "vocab_size": 512}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BIASED = {"llama": ("attention_bias", "mlp_bias"), "qwen3": ("attention_bias",), "granite": ("mlp_bias",)}
BIASED |= {"glm": ("attention_bias",), "seed_oss": ("attention_out_bias",), "ernie4_5": ("use_bias",)}
BIASED |= {"stablelm": ("use_qkv_bias",), "arcee": ("mlp_bias",), "nemotron": ("attention_bias", "mlp_bias")}
# With these the adviser refuses the family: test_promises.py.
OFF: dict[str, dict[str, Any]] = {"gemma2": {"attn_logit_softcapping": None}}
OFF |= {"seed_oss": {"attention_dropout": 0.0, "residual_dropout": 0.0}}
# Not of transformers' own (qwen), or a part of what is tried in test_images.
ELSEWHERE = {"qwen", "qwen2_vl", "qwen2_vl_text"}
COUNTED = sorted(FAMILIES.keys() - ELSEWHERE)
REFUSED = [
    "falcon_h1", "mamba", "qwen3_5_text", "qwen3_next", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2",
    "deepseek_v3", "gpt_oss", "olmoe", "lfm2", "falcon", "gpt2", "opt", "bloom", "gptj", "mpt", "apertus", "helium",
]  # fmt: skip


def count(config: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return the parameters that transformers makes of a config, and the config as it would be saved."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    made = AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(made)
    return sum(parameter.numel() for parameter in model.parameters()), made.to_dict()


@pytest.mark.parametrize("kind", COUNTED)
@pytest.mark.parametrize("tied", [None, True, False])
def test_a_known_family_is_counted_exactly(kind: str, tied: bool | None) -> None:
    given = {"model_type": kind, **SIZES, **SPECIAL, **OFF.get(kind, {})}
    given |= {} if tied is None else {"tie_word_embeddings": tied}
    given |= {key: True for key in BIASED.get(kind, ()) if tied}
    if kind == "gpt_neox":
        given["num_key_value_heads"] = given["num_attention_heads"]
    expected, saved = count(given)
    assert from_config(given, kind).parameters == expected, "as a config.json that leaves out what is usual"
    assert from_config(saved, kind).parameters == expected, "as transformers saves it"


@pytest.mark.parametrize("kind", REFUSED)
def test_an_unknown_family_is_refused_and_named(kind: str) -> None:
    with pytest.raises(NotFound, match=f"{kind}|mixture of experts"):
        from_config({"model_type": kind, **SIZES}, "odd")


def test_at_least_forty_families_are_tried() -> None:
    assert len(COUNTED) + len(REFUSED) >= 40
