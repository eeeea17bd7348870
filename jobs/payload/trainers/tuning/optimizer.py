"""The optimiser: AdamW, the learning-rate schedule, gradient reduction over the ranks, and sharding by FSDP2."""

from __future__ import annotations

import argparse
import functools
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import checkpoint
from .card import Device
from .checkpoint import Saved, free_memory
from .errors import TrainingRefused
from .group import Group, is_part
from .memory import TooLargeForOneDevice, kept_bytes
from .model import CausalLM
from .options import by_layers, unshared


class Optimizer:
    """AdamW on parameters and optimiser states that are replicated on each rank, or sharded by FSDP2.

    ``averaged``: parameters are sharded, so that their gradients are averaged over the ranks rather than summed, and
    saving gathers the states, a collective call on all ranks.
    """

    def __init__(self, options: argparse.Namespace, model: CausalLM, card: Device, group: Group) -> None:
        self._options, self._model, self._group = options, model, group
        self.averaged = any(is_part(part) for part in model.trained)
        self._adamw = make_adamw(options, model.trained, fused=card.accelerated)
        self._scaler = torch.amp.GradScaler("cuda", enabled=card.precision == "fp16")

    def backward(self, part: Any) -> None:
        """Accumulate the gradients of a micro-batch; ``part`` is its share of the step's loss."""
        self._scaler.scale(part).backward()

    def step(self, loss: Any, rate: float) -> tuple[float, float]:
        """Update the weights with a learning rate; return the loss summed over the ranks, and the gradient norm.

        If the norm is not finite the update is skipped: one row that overflows must not destroy the weights.
        """
        trained = self._model.trained
        self._group.sum_gradients(trained, loss)
        self._scaler.unscale_(self._adamw)
        norm = torch.nn.utils.clip_grad_norm_(trained, self._options.clip or math.inf)
        for part in self._adamw.param_groups:
            part["lr"] = rate
        norm = norm.full_tensor() if is_part(norm) else norm
        value, length = torch.stack([loss, norm.to(loss)]).tolist()
        # With fp16 the GradScaler detects overflow itself, skips the step and lowers its scale.
        if self._scaler.is_enabled() or math.isfinite(length):
            self._scaler.step(self._adamw)
        self._scaler.update()
        self._adamw.zero_grad(set_to_none=True)
        return value, length

    def as_it_lies(self) -> Saved:
        """Return weights and optimiser state without a copy: valid until the next step changes them."""
        model = self._model
        weights = {name: part.detach() for name, part in model.named} if model.adapter else model.whole.state_dict()
        return Saved(dict(weights), self._adamw.state_dict())

    @property
    def scale(self) -> dict[str, Any]:
        """The state of the GradScaler; {} unless the precision is fp16."""
        return dict(self._scaler.state_dict())

    def restore(self, folder: Path, scale: dict[str, Any]) -> None:
        """Load the optimiser state of a checkpoint, and ``scale``, the GradScaler's; {} leaves that at its start."""
        if self._options.shared:
            self._adamw.load_state_dict(own_part(checkpoint.read_optimizer(folder, mapped=True), self._adamw))
        else:
            self._adamw.load_state_dict(checkpoint.read_optimizer(folder))
        if self._scaler.is_enabled() and scale:
            self._scaler.load_state_dict(scale)


def make_adamw(options: argparse.Namespace, trained: list[Any], *, fused: bool) -> Any:
    """Return AdamW (8-bit if asked for); weight decay applies only to parameters of more than one dimension."""
    groups = [
        {"params": [part for part in trained if part.ndim > 1], "weight_decay": options.decay},
        {"params": [part for part in trained if part.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if options.optimizer == "adamw8bit":
        from bitsandbytes.optim import AdamW8bit

        return AdamW8bit(groups, lr=options.rate)
    return torch.optim.AdamW(groups, lr=options.rate, fused=fused)


def rate_at(options: argparse.Namespace, step: int, target: int) -> float:
    """Return the factor on the peak learning rate at a step: linear warmup, then cosine decay to 0, or constant."""
    if step < options.warmup:
        return (step + 1) / float(options.warmup)
    if options.schedule == "constant":
        return 1.0
    done = (step - options.warmup) / max(1, target - options.warmup)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


# FSDP2: each rank keeps a shard of all parameters, and gathers a full layer only while it computes that layer.
_HELD = 0.85  # share of device memory for weights and states; the rest is for activations, logits and libraries
_COPIES = 1.25  # host memory that loading takes, as a multiple of the weights


def is_shared(options: argparse.Namespace, source: str, card: Device, group: Group) -> bool:
    """Return whether to shard: as --shard says; if it does not, when weights and states do not fit one device.

    Raises TooLargeForOneDevice if one process must use all devices instead, with the layers spread over them.
    """
    if group.size == 1 or options.shard == "off":
        return False
    if by_layers(options):  # a decision that was stored for this machine
        raise TooLargeForOneDevice
    if options.shard == "on":
        return True
    if unshared(options) or not card.accelerated:
        return False
    room = _HELD * torch.cuda.get_device_properties(card.device).total_memory
    # Files hold at least 16 bits per weight, so that their size bounds the count: most models need no exact count.
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
    """Return the model that ``make`` loads; one rank after the other if host memory cannot hold all copies.

    ``weights`` is the size of one copy in bytes.
    """
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
                f"weights are shared out by torch 2.8 or later, and this is {torch.__version__}: --shard off"
            )
        self._device = card.device
        self._mesh = init_device_mesh("cuda" if card.accelerated else "cpu", (group.size,))

    def share_out(self, model: CausalLM) -> None:
        """Shard a model from host memory: this rank keeps its shard on its device. An adapter stays replicated."""
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        everybodys = set(model.trained) if model.adapter else set()
        for part in everybodys:
            part.data = part.data.to(self._device)
        for module in (*model.layers, model.root):
            fully_shard(module, mesh=self._mesh, reshard_after_forward=True, ignored_params=everybodys)
        # summed_loss is no module's forward: registered as one of the root, so that FSDP2's hooks run around it.
        model.root.summed_loss = model.compute
        register_fsdp_forward_method(model.root, "summed_loss")
        model.compute = model.root.summed_loss
        model.collect()


def own_part(state: dict[str, Any], optimizer: Any) -> dict[str, Any]:
    """Return a saved, unsharded optimiser state with this rank's shards of the states of sharded parameters."""
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
