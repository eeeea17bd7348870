"""The process group of a training: data parallel, one rank per device, each with a part of every step's rows.

Gradients are all-reduced once per step, in a fixed order of buckets, so that results do not depend on timing.
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from ..errors import TrainingRefused

_PATIENCE = timedelta(hours=2)  # timeout: ranks wait while rank 0 loads data or saves
_BUCKET_ELEMENTS = 1 << 25


class Group:
    """The ranks of a training as one of them sees it. With one rank no method communicates."""

    def __init__(self, device: str, *, alone: bool = False) -> None:
        """Join torch's process group. A single process creates one only if ``alone`` is True."""
        self.rank, self.size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self._device = device
        self._control: Any = None
        if self.size > 1 or alone:
            distributed.init_process_group("gloo" if device == "cpu" else "nccl", timeout=_PATIENCE)
            # Flags are exchanged over gloo on the CPU: over NCCL they would wait for all work queued on the GPU.
            self._control = distributed.new_group(backend="gloo", timeout=_PATIENCE)

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which reports and saves."""
        return self.rank == 0

    def any(self, *wishes: bool) -> tuple[bool, ...]:
        """Return the logical OR of each flag over all ranks; a collective call, the same result on each rank."""
        if self.size == 1:
            return wishes
        flags = torch.tensor([int(wish) for wish in wishes])
        distributed.all_reduce(flags, distributed.ReduceOp.MAX, group=self._control)
        return tuple(bool(wish) for wish in flags.tolist())

    def same(self, name: str, value: str) -> None:
        """Raise TrainingRefused unless ``value`` is the same on all ranks; ``name`` is for the message."""
        if self.size == 1:
            return
        values = self.gather(value)
        if len(set(values)) > 1:
            raise TrainingRefused(
                f"the processes do not agree on the {name}: {values}; were their files changed meanwhile?"
            )

    def gather(self, value: Any) -> list[Any]:
        """Return the value of every rank, in the order of ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value, group=self._control)
        return values

    def wait(self) -> None:
        """Wait at a barrier until all ranks have reached it."""
        if self.size > 1:
            distributed.barrier(group=self._control)

    def share(self, parameters: Sequence[Any]) -> None:
        """Broadcast replicated parameters from rank 0."""
        if self.size > 1:
            for parameter in replicated(parameters):
                distributed.broadcast(parameter.data, 0)

    def sum_gradients(self, parameters: Sequence[Any], loss: Any) -> None:
        """Sum ``loss`` and gradients over all ranks, in buckets of one dtype; FSDP2 has reduced sharded ones."""
        if self.size == 1:
            return
        distributed.all_reduce(loss)
        bucket: list[Any] = []
        elements = 0
        for parameter in replicated(parameters):
            if parameter.grad is None:  # no row of this rank used the parameter, such as an expert's
                parameter.grad = torch.zeros_like(parameter)
            gradient = parameter.grad
            if bucket and (elements + gradient.numel() > _BUCKET_ELEMENTS or gradient.dtype != bucket[0].dtype):
                _sum(bucket)
                bucket, elements = [], 0
            bucket.append(gradient)
            elements += gradient.numel()
        if bucket:
            _sum(bucket)

    def leave(self) -> None:
        """Destroy the process group, on all ranks together. A rank that only exits breaks the others' connections."""
        if self._control is not None:
            distributed.destroy_process_group()


def is_part(tensor: Any) -> bool:
    """Return whether a tensor is sharded (a DTensor). An attribute decides: importing DTensor takes a second."""
    return hasattr(tensor, "full_tensor")


def replicated(parameters: Sequence[Any]) -> list[Any]:
    """Return the parameters that are not sharded; every rank has a full copy."""
    return [parameter for parameter in parameters if not is_part(parameter)]


def _sum(gradients: list[Any]) -> None:
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    distributed.all_reduce(flat)
    first = 0
    for gradient in gradients:
        gradient.copy_(flat[first : first + gradient.numel()].view_as(gradient))
        first += gradient.numel()
