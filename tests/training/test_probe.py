"""What a layer keeps, as the probe finds it in transformers' own code, against the adviser's formula."""

from typing import Any

import pytest

from jobs.advice.memory import layer_bytes as formula
from jobs.advice.shape import STACKS, Setup, from_config
from jobs.payload.trainers.calibrate import DEFAULTS
from jobs.payload.trainers.probe import layer_bytes

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")

SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 2560,
    "vocab_size": 512,
}


@pytest.mark.parametrize(
    ("given", "setup"),
    [
        ({"method": "full", "autocast": False}, {"method": "full", "master": False}),
        ({"method": "full", "weights": "fp32"}, {"method": "full", "master": True}),
        ({"method": "lora"}, {"method": "lora", "stack": STACKS["transformers"]}),
        ({"method": "lora", "autocast": False}, {"method": "lora", "stack": STACKS["transformers-bare"]}),
        (
            {"method": "lora", "targets": ["q_proj", "v_proj"]},
            {"method": "lora", "stack": STACKS["transformers"], "targets": ("q_proj", "v_proj")},
        ),
    ],
)
def test_the_formula_is_what_the_code_keeps(given: dict[str, Any], setup: dict[str, Any]) -> None:
    found = layer_bytes({**DEFAULTS, "shape": SHAPE, "rank": 8, **given})
    expected = formula(Setup(shape=from_config(SHAPE, "tiny"), rank=8, **setup))
    assert found == pytest.approx(expected, rel=0.03)
