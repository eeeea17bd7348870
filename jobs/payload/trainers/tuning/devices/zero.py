"""All weights trained by DeepSpeed's ZeRO, which shares out their states (1), gradients too (2), weights too (3).

What is shared out may lie in the machine's memory, so that one device trains what would fill four. A checkpoint has the
form of every other: weights and states whole, in 32 bits. So a job moves between ZeRO, FSDP2 and one device.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .. import checkpoint
from ..checkpoint import Saved, free_memory
from ..errors import TrainingRefused
from ..model import CausalLM
from ..optimizer import make_adamw
from ..options import zero_config
from .card import Device
from .group import Group

_STATES = ("exp_avg", "exp_avg_sq")
_KEPT, _SAVED = 16, 12  # bytes a weight: with its states and gradient; of a checkpoint


class Fragment:
    """Something of a weight, of which this process has a part; ``full_tensor`` brings it together in all of them."""

    def __init__(self, gather: Callable[[], Any]) -> None:
        self.full_tensor = gather


class Zero:
    """Stands in for Optimizer. Takes a model whose weights lie in the machine's memory, and puts itself into it."""

    averaged = True

    def __init__(
        self,
        options: argparse.Namespace,
        model: CausalLM,
        card: Device,
        group: Group,
        rows_at_once: int,
        begun: Path | None = None,
    ) -> None:
        """``options.zero`` is the stage; ``begun`` is the checkpoint whose weights the model has.

        Raises TrainingRefused where DeepSpeed is missing.
        """
        deepspeed = load_deepspeed()
        self._options, self._group, self._model = options, group, model
        self._named, self._shapes = dict(model.named), {name: part.shape for name, part in model.named}
        adamw = make_adamw(options, model.trained, fused=card.accelerated or options.offload)
        names = {part: name for name, part in model.named}
        self._order = [names[part] for settings in adamw.param_groups for part in settings["params"]]
        self._form = adamw.state_dict()["param_groups"]
        config = zero_config(
            options, card.precision, sum(map(math.prod, self._shapes.values())), group.size, rows_at_once
        )
        whole = _Loss(model)
        deepspeed.init_distributed("nccl" if card.accelerated else "gloo", auto_mpi_discovery=False, verbose=False)
        if options.zero == 3:  # parted one by one: no device has to hold all of them at once
            deepspeed.zero.Init(module=whole, config_dict_or_path=config)
        self._engine, *_ = deepspeed.initialize(model=whole, optimizer=adamw, config=config)
        self._zero = self._engine.optimizer
        if hasattr(self._zero.loss_scaler, "raise_error_at_min_scale"):
            self._zero.loss_scaler.raise_error_at_min_scale = False  # a loss that is no number is reported as one
        self._access, self._left, self._parts = deepspeed.utils, 0, config["gradient_accumulation_steps"]
        self._make_states()
        model.compute = self._engine
        if begun is not None:
            weights = checkpoint.Weights(begun)  # in 32 bits, and the model may have been made with 16 of them
            for name in self._named:
                self._put(name, weights.read(name))

    def backward(self, part: Any) -> None:
        """Add the gradients of a part of a step's loss, times the number of processes: DeepSpeed takes the mean."""
        self._left = (self._left or self._parts) - 1
        self._engine.set_gradient_accumulation_boundary(not self._left)
        self._engine.backward(part, scale_wrt_gas=False)

    def step(self, loss: Any, rate: float) -> tuple[float, float]:
        """Change the weights at a learning rate; return the loss, summed over the processes, and the gradients' norm.

        Where that is no number the weights stay as they are.
        """
        for part in self._zero.param_groups:
            part["lr"] = rate
        self._engine.step()
        if self._group.size > 1:
            torch.distributed.all_reduce(loss)
        return float(loss), float(self._engine.get_global_grad_norm() or 0.0)

    def as_it_lies(self) -> Saved:
        """Return what is saved in the form of every checkpoint, nearly all of it fragments."""
        parts = {id(part): self._part(name) for name, part in self._named.items()}
        state = self._model.whole.state_dict(keep_vars=True)
        weights = {name: parts.get(id(value), value) for name, value in state.items()}
        steps = float(self._zero.optimizer.state[self._flat[0]]["step"])
        # Each has a tensor of its own to count with: what is saved as one is read as one, and counted up by all.
        states = {
            number: {"step": torch.tensor(steps), **{key: self._part(name, key) for key in _STATES}}
            for number, name in enumerate(self._order)
        }
        settings = [{**form, "lr": now["lr"]} for form, now in zip(self._form, self._zero.param_groups, strict=True)]
        return Saved(weights, {"state": states, "param_groups": settings})

    @property
    def scale(self) -> dict[str, Any]:
        """What fp16 multiplies gradients by, as torch keeps it; empty for other numbers."""
        scaler = self._zero.loss_scaler
        if not scaler.dynamic:
            return {}
        good = scaler.cur_iter - scaler.last_overflow_iter - 1
        return {
            "scale": float(scaler.cur_scale), "growth_factor": scaler.scale_factor, "backoff_factor": 0.5,
            "growth_interval": scaler.scale_window, "_growth_tracker": good % scaler.scale_window,
        }  # fmt: skip

    def restore(self, folder: Path, scale: dict[str, Any]) -> None:
        """Take up a checkpoint's states."""
        saved = checkpoint.read_optimizer(folder, mapped=True)
        for number, state in saved["state"].items():  # none, before the first step
            for key in _STATES:
                self._put(self._order[number], state[key], key)
        for flat in self._flat if saved["state"] else ():
            self._zero.optimizer.state[flat]["step"].fill_(float(saved["state"][0]["step"]))
        scaler = self._zero.loss_scaler
        if scaler.dynamic and scale:
            scaler.cur_scale, scaler.cur_iter, scaler.last_overflow_iter = scale["scale"], scale["_growth_tracker"], -1

    def _part(self, name: str, key: str | None = None) -> Any:
        """Return a weight, or one of its states, as what it is brought together from; whole where it lies so."""
        part, shape = self._named[name], self._shapes[name]
        if self._group.size == 1 and self._options.zero < 3:
            return part._hp_mapping.get_hp_fragment(key).view(shape)  # noqa: SLF001 - DeepSpeed's own way copies it
        if key is None:
            return Fragment(lambda: self._access.safe_get_full_fp32_param(part).view(shape))
        return Fragment(lambda: self._access.safe_get_full_optimizer_state(part, key).view(shape))

    def _put(self, name: str, value: Any, key: str | None = None) -> None:
        """Keep this process' part of a weight, or of one of its states."""
        part, kind = self._named[name], "full" if self._options.zero < 3 else "local"
        if kind == "local":
            size = part.ds_tensor.numel()
            own = value.float().flatten()[self._group.rank * size : (self._group.rank + 1) * size]
            value = torch.nn.functional.pad(own, (0, size - own.numel()))  # the last process' part is filled up
        what = "fp32_param" if key is None else "optimizer_state"
        getattr(self._access, f"safe_set_{kind}_{what}")(part, value, *(() if key is None else (key,)))

    @property
    def _flat(self) -> list[Any]:
        """What torch's AdamW is given: this process' parts, laid end to end."""
        zero = self._zero
        return list(
            zero.fp32_partitioned_groups_flat if self._options.zero == 3 else zero.single_partition_of_fp32_groups
        )

    def _make_states(self) -> None:
        """Let AdamW have its states before its first step, so that what was saved can be put into them."""
        adamw = self._zero.optimizer
        for flat in self._flat:
            adamw.state[flat] = {"step": torch.tensor(0.0, device=flat.device if adamw.defaults["fused"] else "cpu")}
            adamw.state[flat] |= {key: torch.zeros_like(flat) for key in _STATES}
        if self._options.zero < 3:
            # The first step would do it, after the first of several groups, and forget the states of the others.
            self._zero._lazy_init_hp_params_optimizer_state()  # noqa: SLF001 - there is no other way


def check(options: argparse.Namespace, weights: int, group: Group) -> None:
    """Raise TrainingRefused where DeepSpeed is missing, or the machine's memory does not hold what is put there."""
    load_deepspeed()
    here = int(os.environ.get("LOCAL_WORLD_SIZE", group.size)) / group.size  # of all processes, on this machine
    copies = 0 if group.size == 1 and options.zero < 3 else _SAVED  # of what is brought together, and of nothing else
    needed = weights * ((_KEPT * here if options.offload else 0) + (copies if group.first else 0))
    if group.any(free_memory() < needed)[0]:
        raise TrainingRefused(
            f"--zero {options.zero}{' --offload' if options.offload else ''} takes {needed / 1e9:.1f} GB of the "
            f"machine's memory, and {free_memory() / 1e9:.1f} GB are free: take one device with --zero 2 --offload "
            f"({_KEPT * weights / 1e9:.1f} GB), an adapter (--lora) or a machine with more memory"
        )


class _Loss(torch.nn.Module):  # type: ignore[misc]  # not there where types are checked
    """The model with its loss, which DeepSpeed takes for the forward pass of a module."""

    def __init__(self, model: CausalLM) -> None:
        super().__init__()
        self.whole, self._compute = model.whole, model.compute

    def forward(self, *batch: Any, **inputs: Any) -> Any:
        return self._compute(*batch, **inputs)


def load_deepspeed() -> Any:
    """Return DeepSpeed. Raises TrainingRefused where it is not installed."""
    try:
        import deepspeed
    except ImportError as error:
        raise TrainingRefused(
            f"--zero needs {error.name or 'deepspeed'}, which is not installed here: name deepspeed in the job's "
            "requirements, or leave --zero out for --shard, which shares weights out without it"
        ) from None
    # What processes of one machine could exchange sums by would be compiled here, and is not used to train.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed
