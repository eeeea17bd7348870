"""Sharding by FSDP2: each rank keeps a shard of every parameter, and gathers a layer only while computing it."""

import argparse
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..checkpoint import free_memory
from ..errors import TrainingRefused
from ..memory import TooLargeForOneDevice, kept_bytes
from ..model import CausalLM
from ..options import by_layers, unshared
from .card import Device
from .group import Group, is_part

_HELD = 0.85  # share of device memory for weights and states; the rest is for activations, logits and libraries
_COPIES = 1.25  # host memory that loading takes, as a multiple of the weights


def is_shared(options: argparse.Namespace, source: str, card: Device, group: Group) -> bool:
    """Return whether to shard, by --shard or by size. Raises TooLargeForOneDevice if layers must be spread instead."""
    if group.size == 1 or options.shard == "off":
        return False
    if by_layers(options):  # decided by an earlier session on this machine
        raise TooLargeForOneDevice
    if options.shard == "on":
        return True
    if unshared(options) or not card.accelerated:
        return False
    room = _HELD * torch.cuda.get_device_properties(card.device).total_memory
    # Files have at least 16 bits per weight, so their size limits the count; most models need no exact count.
    most = sum(path.stat().st_size for kind in ("safetensors", "bin") for path in Path(source).glob(f"*.{kind}")) // 2
    fits = most and kept_bytes(most, options, card.dtype.itemsize) <= room
    large = group.any(not fits and kept_bytes(parameters(source), options, card.dtype.itemsize) > room)[0]
    if large and options.bits == 4:
        raise TooLargeForOneDevice
    return large


@functools.cache
def parameters(source: str) -> int:
    """Return the number of parameters of a model, from its configuration (on the meta device)."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(source)
    named = getattr(transformers, next(iter(config.architectures or ()), ""), None)
    with torch.device("meta"):
        model = named(config) if named else transformers.AutoModelForCausalLM.from_config(config)
    return int(model.num_parameters())


def load_in_turn(make: Callable[[], CausalLM], weights: int, group: Group) -> CausalLM:
    """Return ``make()``. Ranks call it in turn if host memory cannot hold all copies of ``weights`` bytes at once."""
    in_turn = group.any(free_memory() < _COPIES * weights * group.size)[0]
    for _ in range(group.rank if in_turn else 0):
        group.wait()
    model = make()
    for _ in range(group.rank, group.size if in_turn else group.rank):
        group.wait()
    return model


class Sharing:
    """Shards models over a process group by FSDP2. The constructor is a collective call on all ranks."""

    def __init__(self, card: Device, group: Group) -> None:
        """Create the device mesh. Raises TrainingRefused if torch is too old (before 2.8)."""
        from torch.distributed import fsdp
        from torch.distributed.device_mesh import init_device_mesh

        if "ignored_params" not in inspect.signature(getattr(fsdp, "fully_shard", len)).parameters:
            raise TrainingRefused(
                f"sharding needs torch 2.8 or later, and this is {torch.__version__}: set --shard off"
            )
        self._device = card.device
        self._mesh = init_device_mesh("cuda" if card.accelerated else "cpu", (group.size,))

    def share_out(self, model: CausalLM) -> None:
        """Shard a model from host memory: this rank keeps its shard on its device. An adapter stays replicated."""
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        replicated = set(model.trained) if model.adapter else set()
        for part in replicated:
            part.data = part.data.to(self._device)
        for module in (*model.layers, model.root):
            fully_shard(module, mesh=self._mesh, reshard_after_forward=True, ignored_params=replicated)
        # summed_loss is not the forward of a module. Registered as one of the root, it gets FSDP2's hooks.
        model.root.summed_loss = model.compute
        register_fsdp_forward_method(model.root, "summed_loss")
        model.compute = model.root.summed_loss
        model.collect()


def own_part(state: dict[str, Any], optimizer: Any) -> dict[str, Any]:
    """Return a saved optimiser state in which states of sharded parameters are replaced by this rank's shards."""
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
