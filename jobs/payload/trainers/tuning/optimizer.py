"""What changes the weights: AdamW, its learning rate, and how gradients of all processes become one step."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch

from . import checkpoint
from .card import Device
from .group import Group, is_part
from .model import CausalLM
from .snapshot import Saved


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
            from .shards import own_part

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
