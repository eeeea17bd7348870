"""Which devices are trained on, and in which numbers: by their compute capability and by what torch was built for."""

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
import torch

from jobs.payload.trainers.tuning.devices.card import find_card
from jobs.payload.trainers.tuning.errors import TrainingRefused

USUAL = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
OLD = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90a"]
CARDS: dict[str, tuple[tuple[int, int], list[str], tuple[str, ...], Any]] = {
    "T4": ((7, 5), USUAL, (), ("fp16", True)),
    "L4, by kernels for 8.6": ((8, 9), USUAL, (), ("bf16", True)),
    "H100": ((9, 0), OLD, (), ("bf16", True)),
    "5060 Ti": ((12, 0), USUAL, (), ("bf16", True)),
    "5060 Ti, compiled when needed": ((12, 0), ["sm_90", "compute_90"], (), ("bf16", True)),
    "5060 Ti, torch for CUDA 12.6": ((12, 0), OLD, (), "Use a torch built for CUDA 12.8 or later"),
    "V100": ((7, 0), OLD, (), ("fp16", True)),
    "V100, torch of today": ((7, 0), USUAL, (), "Use a torch 2.6 to 2.14 built for CUDA 12.6"),
    "P100": ((6, 0), OLD, (), "neither tensor cores nor Triton"),
    "P100, asked for": ((6, 0), OLD, ("fp16",), ("fp16", False)),
    "P100, asked for, torch of today": ((6, 0), USUAL, ("fp16",), "has kernels for sm_75"),
    "A100 in fp8": ((8, 0), USUAL, ("fp8",), "has no units for fp8"),
    "T4 in bf16": ((7, 5), USUAL, ("bf16",), "has no units for bf16"),
}


@pytest.mark.parametrize("name", CARDS)
def test_a_card_is_used_as_it_can_be_or_refused_with_the_remedy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    capability, kernels, precision, expected = CARDS[name]
    for function, answer in {
        "is_available": True, "device_count": 1, "set_device": None, "get_device_name": name,
        "get_device_capability": capability, "get_arch_list": kernels,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, function, lambda *_, answer=answer: answer)
    if isinstance(expected, str):
        with pytest.raises(TrainingRefused, match=expected):
            find_card(0, *precision)
        return
    found = find_card(0, *precision)
    assert (found.precision, found.compiles) == expected
