"""Activation offload: keep the inputs that gradient checkpointing saves in host memory until the backward pass."""

from collections import deque
from typing import Any

import torch

_COPYING_MAX = 2  # copies to the host in flight; the GPU keeps those inputs until their copy is complete


class OffloadedInputs(torch.autograd.graph.saved_tensors_hooks):  # type: ignore[misc]  # torch is not installed here
    """Saved-tensor hooks that offload layer inputs to the host, for a forward pass and the backward pass after it."""

    def __init__(self, width: int) -> None:
        """``width`` is the hidden size: CUDA tensors of shape (rows, tokens, width) are offloaded, all others stay."""
        super().__init__(self._offload, self._bring_back)
        self._width = width
        self._copying = torch.cuda.Stream()
        self._away: list[torch.Tensor] = []
        self._leaving: deque[tuple[torch.Tensor, torch.cuda.Event]] = deque()
        self._back: dict[int, tuple[torch.Tensor, torch.cuda.Event]] = {}

    def __enter__(self) -> None:
        """Drop the inputs of the previous step, whose backward pass is complete, and start to record new ones."""
        self._wait_for_copies(0)
        self._away, self._back = [], {}
        super().__enter__()

    def _offload(self, tensor: torch.Tensor) -> torch.Tensor | int:
        if not tensor.is_cuda or tensor.dim() != 3 or tensor.shape[-1] != self._width:
            return tensor
        self._wait_for_copies(_COPYING_MAX - 1)
        away = torch.empty_like(tensor, device="cpu", pin_memory=True)
        self._away.append(away)
        self._leaving.append((tensor, self._copied(away, tensor)))
        return len(self._away) - 1

    def _bring_back(self, kept: Any) -> torch.Tensor:
        if isinstance(kept, torch.Tensor):
            return kept
        self._wait_for_copies(0)
        if kept not in self._back:
            self._back[kept] = self._start_fetch(kept)
        tensor, there = self._back.pop(kept)
        torch.cuda.current_stream().wait_event(there)
        if kept and kept - 1 not in self._back:
            self._back[kept - 1] = self._start_fetch(kept - 1)
        return tensor

    def _wait_for_copies(self, at_most: int) -> None:
        """Wait until at most ``at_most`` copies to the host are in flight, so that memory of the others is free."""
        while len(self._leaving) > at_most:
            torch.cuda.current_stream().wait_event(self._leaving.popleft()[1])

    def _start_fetch(self, number: int) -> tuple[torch.Tensor, torch.cuda.Event]:
        tensor = torch.empty_like(self._away[number], device="cuda")
        return tensor, self._copied(tensor, self._away[number])

    def _copied(self, target: torch.Tensor, source: torch.Tensor) -> torch.cuda.Event:
        """Queue a copy after all work queued on the compute stream; return the CUDA event that marks its end."""
        self._copying.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copying):
            target.copy_(source, non_blocking=True)
            return self._copying.record_event()
