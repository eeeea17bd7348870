"""Attention by documents' ends: what a mask gives, at a fraction of its time."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
import numpy as np
import torch
import transformers
from torch.nn import functional

from jobs.payload.trainers.tuning import attention
from jobs.payload.trainers.tuning.devices.card import Device
from jobs.payload.trainers.tuning.model import CausalLM
from jobs.payload.trainers.tuning.options import read_options
from tests.lab.desk import Desk, accelerators

# Without an accelerator the kernel's stand-in computes on the processor ("cpu:0" is one to torch).
CARD = Device("cuda:0" if accelerators() else "cpu:0", "NVIDIA H100", "bf16", compiles=True)
DOCUMENTS = np.array([[1] * 10 + [2] * 22, [1] * 32, [1] * 1 + [2] * 5 + [3] * 26])


def positions() -> np.ndarray[Any, Any]:
    """Places of tokens in their documents."""
    return np.stack([np.concatenate([np.arange(np.sum(row == one)) for one in np.unique(row)]) for row in DOCUMENTS])


def one_by_one(query: Any, key: Any, value: Any, ends: Any, *_: Any, scale: float, window_size: Any) -> Any:
    """What torch's kernel computes on accelerators: tensors of (tokens, heads, numbers), document by document."""
    assert window_size == (-1, 0), "none sees what comes after it"
    out = [
        functional.scaled_dot_product_attention(
            *(part[first:last].transpose(0, 1) for part in (query, key, value)), is_causal=True, scale=scale
        )
        for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    ]
    return torch.cat(out, dim=1).transpose(0, 1)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel, or what stands for it where there is no accelerator."""
    if not accelerators():
        monkeypatch.setattr(attention, "_kernel", lambda: one_by_one)


def losses_and_gradients(**more: Any) -> tuple[float, list[Any]]:
    """Of a small model with fewer heads of keys than of queries: those of a mask, or those of documents' ends."""
    torch.manual_seed(1)
    torch.set_num_threads(1)  # several would be missing from what other tests fork
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=128, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attn_implementation="sdpa",
    )  # fmt: skip
    device = "cuda" if accelerators() else "cpu"
    whole = transformers.LlamaForCausalLM(config).to(device)
    if more:
        attention.tell_apart(whole)
    model = CausalLM(whole, adapter=False)
    tokens = torch.randint(64, DOCUMENTS.shape, generator=torch.Generator().manual_seed(1)).to(device)
    documents = None if more else torch.from_numpy(DOCUMENTS).to(device)
    with torch.autocast(device, torch.bfloat16, enabled=bool(accelerators())):
        loss = model.summed_loss(
            tokens, tokens.roll(-1, 1), torch.from_numpy(positions()).to(device), documents, **more
        )
    loss.backward()
    return float(loss.detach()), [part.grad for part in model.trained]


def test_it_gives_what_a_mask_gives(kernel: None) -> None:
    ends = attention.document_ends(positions(), "cuda" if accelerators() else "cpu")
    assert ends.tolist() == [0, 10, 32, 64, 65, 70, 96]
    near = 3e-2 if accelerators() else 1e-5  # of numbers of 16 bits
    (loss, gradients), (expected, masked) = losses_and_gradients(document_ends=ends), losses_and_gradients()
    assert loss == pytest.approx(expected, rel=near)
    for gradient, other in zip(gradients, masked, strict=True):
        assert float((gradient - other).norm()) <= near * float(other.norm())


def test_the_kernel_is_asked_in_its_own_words() -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen", reason="this torch has no such kernel")
    given = inspect.signature(varlen.varlen_attn)
    given.bind(*range(7), scale=1.0, window_size=(-1, 0))


@pytest.mark.parametrize(
    ("changed", "options", "apart"),
    [
        ({}, (), True),
        ({}, ("--lora", "4"), True),
        ({}, ("--stage", "selftrain", "--reward", "a command"), False),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8}, (), False),
        ({"attention_dropout": 0.1}, (), False),
        ({"model_type": "gemma2"}, (), False),
        ({"head_dim": 512}, (), False),
    ],
    ids=["llama", "adapter", "rows that are filled up", "a window", "dropout", "another kind", "wide heads"],
)
def test_only_attention_that_the_kernel_computes_is_left_to_it(
    kernel: None, model: Path, tmp_path: Path, changed: dict[str, Any], options: tuple[str, ...], apart: bool
) -> None:
    config = transformers.AutoConfig.from_pretrained(model).to_dict() | changed
    kind = transformers.CONFIG_MAPPING[config["model_type"]]
    kind.from_dict(config).save_pretrained(tmp_path)
    read = read_options(["--model", str(tmp_path), *options])
    assert attention.is_apart(read, str(tmp_path), CARD) == apart
    assert not attention.is_apart(read, str(tmp_path), CARD._replace(precision="fp16"))
    assert not attention.is_apart(read, str(tmp_path), Device("cpu", "cpu", "bf16", compiles=False))


def test_a_model_of_images_keeps_its_own_attention(kernel: None, tmp_path: Path) -> None:
    transformers.CONFIG_MAPPING["qwen2_vl"]().save_pretrained(tmp_path)  # it says nothing of heads outside its parts
    assert not attention.is_apart(read_options(["--model", str(tmp_path)]), str(tmp_path), CARD)


def test_a_mask_serves_where_the_card_has_no_such_kernel(
    monkeypatch: pytest.MonkeyPatch, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no kernel image is available for execution on the device\nCUDA error")

    monkeypatch.setattr(attention, "_kernel", lambda: missing)
    assert not attention.is_apart(read_options(["--model", str(model)]), str(model), CARD)
    said = capsys.readouterr().out
    assert "by a mask: torch has no kernel for NVIDIA H100 (no kernel image is available" in said
    assert "CUDA error" not in said


def test_a_checkpoint_tells_of_its_attention_where_that_is_not_as_ever(make_desk: Callable[..., Desk]) -> None:
    """So one of the program before, without a word of it, is gone on from as E1 on such a device."""
    desk = make_desk("desk", "--lora", "4", "--schedule", "constant", target=3)
    assert desk.run().codes == [0]
    kept = desk.kept("fingerprint.json")
    assert kept["place"].get("documents apart") == ("always" if accelerators() else None)
