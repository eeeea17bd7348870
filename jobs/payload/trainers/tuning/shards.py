"""Weights shared out over the processes by FSDP2: each keeps a part of all, and has a whole layer only to compute it.

With an adapter the frozen base is shared out, and the adapter is everybody's, as without. Of all weights gradients and
the optimiser's state are shared out as well. What is saved has the same form either way, so that a job moves from two
devices to one, and to four.
"""

from __future__ import annotations

import argparse
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .card import Device
from .errors import TrainingRefused
from .group import Group, is_part
from .memory import TooLargeForOneDevice, kept_bytes
from .model import CausalLM
from .options import by_layers, unshared
from .snapshot import free_memory

_HELD = 0.85  # of a device's memory; the rest is for activations, logits and what libraries take
_COPIES = 1.25  # of the weights, while they are read


def is_shared(options: argparse.Namespace, source: str, card: Device, group: Group) -> bool:
    """Whether weights are shared out: as told, else where what is kept of them does not fit one device of the group.

    Raises TooLargeForOneDevice where one process must have all devices instead.
    """
    if group.size == 1 or options.shard == "off":
        return False
    if by_layers(options):  # as it is remembered of this machine
        raise TooLargeForOneDevice
    if options.shard == "on":
        return True
    if unshared(options) or not card.accelerated:
        return False
    room = _HELD * torch.cuda.get_device_properties(card.device).total_memory
    # Files of 16 bits a weight or more: by their size most models are known to fit, and nothing need be counted.
    most = sum(path.stat().st_size for kind in ("safetensors", "bin") for path in Path(source).glob(f"*.{kind}")) // 2
    fits = most and kept_bytes(most, options, card.dtype.itemsize) <= room
    large = group.any(not fits and kept_bytes(parameters(source), options, card.dtype.itemsize) > room)[0]
    if large and options.bits == 4:
        raise TooLargeForOneDevice
    return large


@functools.cache
def parameters(source: str) -> int:
    """Return how many weights a model has, by its configuration alone."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(source)
    named = getattr(transformers, next(iter(config.architectures or ()), ""), None)
    with torch.device("meta"):
        model = named(config) if named else transformers.AutoModelForCausalLM.from_config(config)
    return int(model.num_parameters())


def load_in_turn(make: Callable[[], CausalLM], weights: int, group: Group) -> CausalLM:
    """Return what each process makes: of ``weights`` bytes, one process after the other where memory holds no more."""
    in_turn = group.any(free_memory() < _COPIES * weights * group.size)[0]
    for _ in range(group.rank if in_turn else 0):
        group.wait()
    model = make()
    for _ in range(group.rank, group.size if in_turn else group.rank):
        group.wait()
    return model


class Sharing:
    """Shares models out over a group. Create it in all processes at the same time."""

    def __init__(self, card: Device, group: Group) -> None:
        """Raise TrainingRefused where torch is too old for it."""
        from torch.distributed import fsdp
        from torch.distributed.device_mesh import init_device_mesh

        if "ignored_params" not in inspect.signature(getattr(fsdp, "fully_shard", len)).parameters:
            raise TrainingRefused(
                f"weights are shared out by torch 2.8 or later, and this is {torch.__version__}: --shard off"
            )
        self._device = card.device
        self._mesh = init_device_mesh("cuda" if card.accelerated else "cpu", (group.size,))

    def share_out(self, model: CausalLM) -> None:
        """Let this process keep its part of a model, which lies in the machine's memory, on its device."""
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        everybodys = set(model.trained) if model.adapter else set()
        for part in everybodys:
            part.data = part.data.to(self._device)
        for module in (*model.layers, model.root):
            fully_shard(module, mesh=self._mesh, reshard_after_forward=True, ignored_params=everybodys)
        # The loss is no forward of any module; its beginning and end are those of the outermost.
        model.root.summed_loss = model.compute
        register_fsdp_forward_method(model.root, "summed_loss")
        model.compute = model.root.summed_loss
        model.collect()


def own_part(state: dict[str, Any], optimizer: Any) -> dict[str, Any]:
    """Return an optimiser's saved state, which is whole, with this process' parts of what is shared out."""
    from torch.distributed.tensor import distribute_tensor

    trained = [part for group in optimizer.param_groups for part in group["params"]]
    parts: dict[int, Any] = {}
    for number, values in state["state"].items():
        weight = trained[number]
        parts[number] = {
            name: distribute_tensor(value, weight.device_mesh, weight.placements, src_data_rank=None)
            if is_part(weight) and isinstance(value, torch.Tensor) and value.shape == weight.shape
            else value
            for name, value in values.items()
        }
    return {**state, "state": parts}
