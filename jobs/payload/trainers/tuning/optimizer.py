"""The optimiser: AdamW, the learning-rate schedule, and the sum of gradients over the ranks."""

import argparse
import math
from pathlib import Path
from typing import Any

import torch

from . import checkpoint
from .checkpoint import Saved
from .devices.card import Device
from .devices.group import Group, is_part
from .devices.sharding import own_part
from .model import CausalLM


class Optimizer:
    """AdamW on parameters and optimiser states that are replicated on each rank, or sharded by FSDP2.

    ``averaged``: parameters are sharded. FSDP2 then averages gradients over the ranks instead of adding them, and
    saving gathers the states, which is a collective call on all ranks.
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
        """Update the weights if the gradient norm is finite; return the loss over all ranks, and that norm."""
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

    def uncopied(self) -> Saved:
        """Return weights and optimiser state without a copy: valid until the next step changes them."""
        model = self._model
        weights = {name: part.detach() for name, part in model.named} if model.adapter else model.whole.state_dict()
        return Saved(dict(weights), self._adamw.state_dict())

    @property
    def scale(self) -> dict[str, Any]:
        """The state of the GradScaler; {} unless the precision is fp16."""
        return dict(self._scaler.state_dict())

    def restore(self, folder: Path, scale: dict[str, Any]) -> None:
        """Load the optimiser state of a checkpoint. ``scale`` is the GradScaler's state; {} keeps the initial one."""
        if self._options.shared:
            self._adamw.load_state_dict(own_part(checkpoint.read_optimizer(folder, mapped=True), self._adamw))
        else:
            self._adamw.load_state_dict(checkpoint.read_optimizer(folder))
        if self._scaler.is_enabled() and scale:
            self._scaler.load_state_dict(scale)


def make_adamw(options: argparse.Namespace, trained: list[Any], *, fused: bool) -> Any:
    """Return AdamW, or its 8-bit form by --optimizer. Only parameters of several dimensions have weight decay."""
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
