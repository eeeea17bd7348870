"""The processes that train one model together, one a device. Each has the whole model and a part of every step's rows.

Gradients are summed once a step, in one order, so what is computed does not depend on when they arrive.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from .errors import TrainingRefused

_PATIENCE = timedelta(hours=2)  # the others wait while the first one loads data or saves
_BUCKET_ELEMENTS = 1 << 25


class Group:
    """This process and its siblings. Alone, every question is answered at once."""

    def __init__(self, device: str, *, alone: bool = False) -> None:
        """``alone``: a group of torch's is wanted also for one process."""
        self.rank, self.size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self._device = device
        self._control: Any = None
        if self.size > 1 or alone:
            distributed.init_process_group("gloo" if device == "cpu" else "nccl", timeout=_PATIENCE)
            # Wishes travel between processors: asking a device would wait for all that it has to do.
            self._control = distributed.new_group(backend="gloo", timeout=_PATIENCE)

    @property
    def first(self) -> bool:
        """Whether this is the process that reports and saves."""
        return self.rank == 0

    def any(self, *wishes: bool) -> tuple[bool, ...]:
        """Return for each wish whether any process has it: all get the same answer, between the same two steps."""
        if self.size == 1:
            return wishes
        flags = torch.tensor([int(wish) for wish in wishes])
        distributed.all_reduce(flags, distributed.ReduceOp.MAX, group=self._control)
        return tuple(bool(wish) for wish in flags.tolist())

    def same(self, name: str, value: str) -> None:
        """Raise TrainingRefused unless all processes have the same value of what must not differ."""
        if self.size == 1:
            return
        values = self.gather(value)
        if len(set(values)) > 1:
            raise TrainingRefused(
                f"the processes do not agree on the {name}: {values}; were their files changed meanwhile?"
            )

    def gather(self, value: Any) -> list[Any]:
        """Return what every process tells, in their order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value, group=self._control)
        return values

    def wait(self) -> None:
        """Wait until all are here."""
        if self.size > 1:
            distributed.barrier(group=self._control)

    def share(self, parameters: Sequence[Any]) -> None:
        """Give every process the values of the first."""
        if self.size > 1:
            for parameter in replicated(parameters):
                distributed.broadcast(parameter.data, 0)

    def sum_gradients(self, parameters: Sequence[Any], loss: Any) -> None:
        """Replace gradients and ``loss`` by their sums over all processes, in pieces of equal type.

        Of weights that are shared out each process has the sum of its part already.
        """
        if self.size == 1:
            return
        distributed.all_reduce(loss)
        bucket: list[Any] = []
        elements = 0
        for parameter in replicated(parameters):
            if parameter.grad is None:  # what no row of this process used, such as an expert
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
        """End together: a process that just goes breaks the others' connections."""
        if self._control is not None:
            distributed.destroy_process_group()


def is_part(tensor: Any) -> bool:
    """Whether each process has a part of a tensor: a DTensor, to load which takes a second."""
    return hasattr(tensor, "full_tensor")


def replicated(parameters: Sequence[Any]) -> list[Any]:
    """Return those of which every process has the whole."""
    return [parameter for parameter in parameters if not is_part(parameter)]


def _sum(gradients: list[Any]) -> None:
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    distributed.all_reduce(flat)
    first = 0
    for gradient in gradients:
        gradient.copy_(flat[first : first + gradient.numel()].view_as(gradient))
        first += gradient.numel()
