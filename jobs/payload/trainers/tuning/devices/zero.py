"""Training of all weights by DeepSpeed's ZeRO, which shards optimiser states (stage 1), gradients (2) and weights (3).

The shards may be in host memory, so that one device can train a model that would fill four. Checkpoints have the same
form as without ZeRO (whole weights and states, fp32), so a job can move between ZeRO, FSDP2 and one device.
"""

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
from ..options import ZERO
from .card import Device
from .group import Group

_STATES = ("exp_avg", "exp_avg_sq")
_BUCKET = 50_000_000  # values per message; DeepSpeed's default takes twice 1 GB of device memory
_KEPT, _SAVED = 16, 12  # bytes per weight: in training, and in a checkpoint


class Fragment:
    """A sharded tensor; ``full_tensor`` gathers it, a collective call on all ranks."""

    def __init__(self, gather: Callable[[], Any]) -> None:
        self.full_tensor = gather


class Zero:
    """An optimiser with the interface of Optimizer. It gets a model in host memory and replaces its ``compute``."""

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
        """``begun``: the checkpoint whose weights the model has. Raises TrainingRefused if DeepSpeed is missing."""
        deepspeed = load_deepspeed()
        self._options, self._group, self._model = options, group, model
        self._named, self._shapes = dict(model.named), {name: part.shape for name, part in model.named}
        adamw = make_adamw(options, model.trained, fused=card.accelerated or options.offload)
        names = {part: name for name, part in model.named}
        self._order = [names[part] for settings in adamw.param_groups for part in settings["params"]]
        self._form = adamw.state_dict()["param_groups"]
        size = sum(map(math.prod, self._shapes.values()))
        config = zero_config(options, card.precision, size, group.size, rows_at_once)
        whole = _Loss(model)
        deepspeed.init_distributed("nccl" if card.accelerated else "gloo", auto_mpi_discovery=False, verbose=False)
        if options.zero == 3:  # shard weight by weight: no device can hold all of them
            deepspeed.zero.Init(module=whole, config_dict_or_path=config)
        self._engine, *_ = deepspeed.initialize(model=whole, optimizer=adamw, config=config)
        self._zero = self._engine.optimizer
        if hasattr(self._zero.loss_scaler, "raise_error_at_min_scale"):
            self._zero.loss_scaler.raise_error_at_min_scale = False  # a NaN loss is reported instead
        self._access, self._left, self._parts = deepspeed.utils, 0, config["gradient_accumulation_steps"]
        self._make_states()
        model.compute = self._engine
        if begun is not None:
            weights = checkpoint.Weights(begun)  # in fp32; the model may have been loaded in 16 bits
            for name in self._named:
                self._put(name, weights.read(name))

    def backward(self, part: Any) -> None:
        """Accumulate the gradients of a micro-batch; DeepSpeed averages them over the ranks."""
        self._left = (self._left or self._parts) - 1
        self._engine.set_gradient_accumulation_boundary(not self._left)
        self._engine.backward(part, scale_wrt_gas=False)

    def step(self, loss: Any, rate: float) -> tuple[float, float]:
        """Update the weights unless the gradient norm is not finite; return the summed loss, and that norm."""
        for part in self._zero.param_groups:
            part["lr"] = rate
        self._engine.step()
        if self._group.size > 1:
            torch.distributed.all_reduce(loss)
        return float(loss), float(self._engine.get_global_grad_norm() or 0.0)

    def uncopied(self) -> Saved:
        """Return weights and optimiser state in the form of a checkpoint; sharded tensors are Fragments."""
        parts = {id(part): self._part(name) for name, part in self._named.items()}
        state = self._model.whole.state_dict(keep_vars=True)
        weights = {name: parts.get(id(value), value) for name, value in state.items()}
        steps = float(self._zero.optimizer.state[self._flat[0]]["step"])
        # Each state has its own step tensor. A shared tensor would be saved once, and all states would count it up.
        states = {
            number: {"step": torch.tensor(steps), **{key: self._part(name, key) for key in _STATES}}
            for number, name in enumerate(self._order)
        }
        settings = [{**form, "lr": now["lr"]} for form, now in zip(self._form, self._zero.param_groups, strict=True)]
        return Saved(weights, {"state": states, "param_groups": settings})

    @property
    def scale(self) -> dict[str, Any]:
        """The state of the loss scaler, as torch's GradScaler has it; {} unless the precision is fp16."""
        scaler = self._zero.loss_scaler
        if not scaler.dynamic:
            return {}
        good = scaler.cur_iter - scaler.last_overflow_iter - 1
        return {
            "scale": float(scaler.cur_scale), "growth_factor": scaler.scale_factor, "backoff_factor": 0.5,
            "growth_interval": scaler.scale_window, "_growth_tracker": good % scaler.scale_window,
        }  # fmt: skip

    def restore(self, folder: Path, scale: dict[str, Any]) -> None:
        """Load the optimiser state of a checkpoint; ``scale`` is the state of the loss scaler."""
        saved = checkpoint.read_optimizer(folder, mapped=True)
        for number, state in saved["state"].items():  # empty before the first step
            for key in _STATES:
                self._put(self._order[number], state[key], key)
        for flat in self._flat if saved["state"] else ():
            self._zero.optimizer.state[flat]["step"].fill_(float(saved["state"][0]["step"]))
        scaler = self._zero.loss_scaler
        if scaler.dynamic and scale:
            scaler.cur_scale, scaler.cur_iter, scaler.last_overflow_iter = scale["scale"], scale["_growth_tracker"], -1

    def _part(self, name: str, key: str | None = None) -> Any:
        """Return a weight, or its state ``key``, as a Fragment; as a tensor if it is not sharded."""
        part, shape = self._named[name], self._shapes[name]
        if self._group.size == 1 and self._options.zero < 3:
            return part._hp_mapping.get_hp_fragment(key).view(shape)  # noqa: SLF001 - DeepSpeed's public function copies it
        if key is None:
            return Fragment(lambda: self._access.safe_get_full_fp32_param(part).view(shape))
        return Fragment(lambda: self._access.safe_get_full_optimizer_state(part, key).view(shape))

    def _put(self, name: str, value: Any, key: str | None = None) -> None:
        """Store this rank's shard of a weight, or of its state ``key``."""
        part, kind = self._named[name], "full" if self._options.zero < 3 else "local"
        if kind == "local":
            size = part.ds_tensor.numel()
            own = value.float().flatten()[self._group.rank * size : (self._group.rank + 1) * size]
            value = torch.nn.functional.pad(own, (0, size - own.numel()))  # the last rank's shard is padded
        what = "fp32_param" if key is None else "optimizer_state"
        getattr(self._access, f"safe_set_{kind}_{what}")(part, value, *(() if key is None else (key,)))

    @property
    def _flat(self) -> list[Any]:
        """The parameters of torch's AdamW: this rank's shards, flattened."""
        zero = self._zero
        return list(
            zero.fp32_partitioned_groups_flat if self._options.zero == 3 else zero.single_partition_of_fp32_groups
        )

    def _make_states(self) -> None:
        """Create AdamW's states before its first step, so that saved states can be loaded."""
        adamw = self._zero.optimizer
        for flat in self._flat:
            adamw.state[flat] = {"step": torch.tensor(0.0, device=flat.device if adamw.defaults["fused"] else "cpu")}
            adamw.state[flat] |= {key: torch.zeros_like(flat) for key in _STATES}
        if self._options.zero < 3:
            # The first step would do this after the first parameter group, before the other groups have states.
            self._zero._lazy_init_hp_params_optimizer_state()  # noqa: SLF001 - DeepSpeed has no public name for it


def check(options: argparse.Namespace, weights: int, group: Group) -> None:
    """Raise TrainingRefused if DeepSpeed is missing or host memory is too small."""
    load_deepspeed()
    here = int(os.environ.get("LOCAL_WORLD_SIZE", group.size)) / group.size  # share of the ranks on this machine
    copies = 0 if group.size == 1 and options.zero < 3 else _SAVED  # bytes per weight of gathered tensors
    needed = weights * ((_KEPT * here if options.offload else 0) + (copies if group.first else 0))
    if group.any(free_memory() < needed)[0]:
        raise TrainingRefused(
            f"--zero {options.zero}{' --offload' if options.offload else ''} takes {needed / 1e9:.1f} GB of the "
            f"machine's memory, and {free_memory() / 1e9:.1f} GB are free: use one device with --zero 2 --offload "
            f"({_KEPT * weights / 1e9:.1f} GB), an adapter (--lora) or a machine with more memory"
        )


def zero_config(
    options: argparse.Namespace, precision: str, weights: int, processes: int, rows_at_once: int
) -> dict[str, Any]:
    """Return DeepSpeed's configuration for a model of ``weights`` parameters; ``rows_at_once`` is the micro-batch."""
    rows = options.batch * options.accumulate
    bucket = min(weights, _BUCKET)
    zero: dict[str, Any] = {"stage": options.zero, "reduce_bucket_size": bucket, "allgather_bucket_size": bucket}
    if options.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        if options.zero == 3:
            zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    zero |= options.zero_more
    if options.deterministic:
        zero["overlap_comm"] = False  # sums must not depend on timing
    return {
        "train_micro_batch_size_per_gpu": rows_at_once,
        "gradient_accumulation_steps": rows // (processes * rows_at_once),
        "gradient_clipping": options.clip,
        "bf16": {"enabled": precision == "bf16"},
        # The values of torch's GradScaler: a checkpoint has its state.
        "fp16": {"enabled": precision == "fp16", "initial_scale_power": 16, "loss_scale_window": 2000, "hysteresis": 1},
        # torch's AdamW is as fast on the CPU as DeepSpeed's, and needs no compiler.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        ZERO: zero,
    }


class _Loss(torch.nn.Module):  # type: ignore[misc]  # not installed where types are checked
    """The model with its loss as a forward pass, which DeepSpeed wraps."""

    def __init__(self, model: CausalLM) -> None:
        super().__init__()
        self.whole, self._compute = model.whole, model.compute

    def forward(self, *batch: Any, **inputs: Any) -> Any:
        return self._compute(*batch, **inputs)


def load_deepspeed() -> Any:
    """Return the module deepspeed. Raises TrainingRefused if it is not installed."""
    try:
        import deepspeed
    except ImportError as error:
        raise TrainingRefused(
            f"--zero needs {error.name or 'deepspeed'}, which is not installed here: name deepspeed in the job's "
            "requirements, or replace --zero by --shard, which shards weights without it"
        ) from None
    # Its shared-memory communication would be compiled here, and training does not use it.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed
