"""What changes the weights: AdamW, its learning rate, and how gradients of all processes become one step."""

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
    """AdamW, whose weights and states are whole in each process, or shared out by FSDP2.

    ``averaged``: gradients of what is shared out are averaged over the processes, and its states are brought together
    to be saved, for which all processes must ask.
    """

    def __init__(self, options: argparse.Namespace, model: CausalLM, card: Device, group: Group) -> None:
        self._options, self._model, self._group = options, model, group
        self.averaged = any(is_part(part) for part in model.trained)
        self._adamw = make_adamw(options, model.trained, fused=card.accelerated)
        self._scaler = torch.amp.GradScaler("cuda", enabled=card.precision == "fp16")

    def backward(self, part: Any) -> None:
        """Add the gradients of a part of a step's loss."""
        self._scaler.scale(part).backward()

    def step(self, loss: Any, rate: float) -> tuple[float, float]:
        """Change the weights at a learning rate; return the loss, summed over the processes, and the gradients' norm.

        Where that is no number the weights stay as they are: one row that overflows must not end all of them.
        """
        trained = self._model.trained
        self._group.sum_gradients(trained, loss)
        self._scaler.unscale_(self._adamw)
        norm = torch.nn.utils.clip_grad_norm_(trained, self._options.clip or math.inf)
        for part in self._adamw.param_groups:
            part["lr"] = rate
        norm = norm.full_tensor() if is_part(norm) else norm
        value, length = torch.stack([loss, norm.to(loss)]).tolist()
        # The scaler of fp16 looks for itself, and lowers its scale.
        if self._scaler.is_enabled() or math.isfinite(length):
            self._scaler.step(self._adamw)
        self._scaler.update()
        self._adamw.zero_grad(set_to_none=True)
        return value, length

    def as_it_lies(self) -> Saved:
        """Return what is saved without copying it: to be written before the next step."""
        model = self._model
        weights = {name: part.detach() for name, part in model.named} if model.adapter else model.whole.state_dict()
        return Saved(dict(weights), self._adamw.state_dict())

    @property
    def scale(self) -> dict[str, Any]:
        """What fp16 multiplies gradients by, as torch keeps it; empty for other numbers."""
        return dict(self._scaler.state_dict())

    def restore(self, folder: Path, scale: dict[str, Any]) -> None:
        """Take up a checkpoint's states."""
        if self._options.shared:
            self._adamw.load_state_dict(own_part(checkpoint.read_optimizer(folder, mapped=True), self._adamw))
        else:
            self._adamw.load_state_dict(checkpoint.read_optimizer(folder))
        if self._scaler.is_enabled() and scale:
            self._scaler.load_state_dict(scale)


def make_adamw(options: argparse.Namespace, trained: list[Any], *, fused: bool) -> Any:
    """Return AdamW over what is trained; decay spares vectors."""
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
    """Return the share of the highest rate at a step: up in a line, then down in half a cosine, or level."""
    if step < options.warmup:
        return (step + 1) / float(options.warmup)
    if options.schedule == "constant":
        return 1.0
    done = (step - options.warmup) / max(1, target - options.warmup)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


# Weights shared out over the processes by FSDP2: each keeps a part of all, and has a whole layer only to compute it.
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
