"""Layers of a base in 4 bits on several devices: which part lies where, and what reaches it."""

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
import torch
import transformers

from jobs.payload.trainers.tuning.devices import layers
from jobs.payload.trainers.tuning.errors import TrainingRefused


def empty(number: int, *, tied: bool = False, words: int = 8_000) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=words, hidden_size=256, intermediate_size=1_024, num_hidden_layers=number,
        num_attention_heads=8, tie_word_embeddings=tied,
    )  # fmt: skip
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("tied", [False, True])
def test_each_weight_lies_on_one_device_and_layers_in_their_order(devices: int, tied: bool) -> None:
    model = empty(12, tied=tied)
    places = layers.device_map(model, devices, 16, 2_048, 64)
    for name, _ in model.named_parameters():
        assert sum(name.startswith(f"{part}.") for part in places) == 1, name
    row = [places[f"model.layers.{number}"] for number in range(12)]
    assert row == sorted(row)
    assert set(row) == set(range(devices))
    assert places["model.embed_tokens"] == 0
    assert places["lm_head"] == places["model.norm"] == (0 if tied else devices - 1)


def test_the_device_with_the_logits_has_fewer_layers() -> None:
    counts = []
    for logits in (1, 20_000):
        places = layers.device_map(empty(12, words=64), 2, 16, 2_048, logits)
        counts.append(sum(place == 1 for name, place in places.items() if ".layers." in name))
    assert counts[0] == 6
    assert counts[1] < 6


@pytest.mark.parametrize("kind", ["few layers", "unknown layers"])
def test_a_model_that_cannot_be_laid_on_devices_is_refused(kind: str) -> None:
    if kind == "few layers":
        model = empty(1)
    else:
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(transformers.OPTConfig(num_hidden_layers=2))
    with pytest.raises(TrainingRefused, match="over 2 devices"):
        layers.device_map(model, 2, 16, 2_048, 64)


def test_each_part_gets_what_it_computes_from_on_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "device", lambda _, place: "meta" if place else "cpu")
    model = torch.nn.ModuleDict({"one": torch.nn.Identity(), "two": torch.nn.Identity()})
    seen = []
    layers.connect(model, {"one": 0, "two": 1})
    model["two"].register_forward_pre_hook(lambda _, values, named: seen.append((values, named)), with_kwargs=True)
    here = torch.ones(2)
    assert model["one"](here).device.type == "cpu"
    with pytest.raises(TypeError, match="unexpected keyword"):
        model["two"](here, positions=(here, here), cache=None)
    (values, named) = seen[0]
    assert values[0].device.type == "meta"
    assert [part.device.type for part in named["positions"]] == ["meta", "meta"]
    assert named["cache"] is None
