"""Offload: inputs of layers that are computed again wait in the machine's memory, not on the card, for the gradient.

Both copies run beside the computing: the one to the machine while later layers compute, the one back while the layer
after it does. Values are copied as they are, so that a step has the same bits with and without.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

_COPYING_MAX = 2  # inputs that are on their way to the machine; the card keeps them until they are there


class OffloadedInputs(torch.autograd.graph.saved_tensors_hooks):  # type: ignore[misc]  # torch is not installed here
    """A context for one forward pass, and for the backward pass that follows it."""

    def __init__(self, width: int) -> None:
        """``width`` is the last dimension of a layer's input (rows, tokens, width); all else stays on the card."""
        super().__init__(self._put_away, self._bring_back)
        self._width = width
        self._copying = torch.cuda.Stream()
        self._away: list[torch.Tensor] = []
        self._leaving: deque[tuple[torch.Tensor, torch.cuda.Event]] = deque()
        self._back: dict[int, tuple[torch.Tensor, torch.cuda.Event]] = {}

    def __enter__(self) -> None:
        """Begin with the next step's inputs; those of the last have been used."""
        self._wait_for_copies(0)
        self._away, self._back = [], {}
        super().__enter__()

    def _put_away(self, tensor: torch.Tensor) -> torch.Tensor | int:
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
            self._back[kept] = self._coming(kept)
        tensor, there = self._back.pop(kept)
        torch.cuda.current_stream().wait_event(there)
        if kept and kept - 1 not in self._back:
            self._back[kept - 1] = self._coming(kept - 1)
        return tensor

    def _wait_for_copies(self, at_most: int) -> None:
        """Let computing wait until no more are leaving: before that, nothing may use the memory of one that left."""
        while len(self._leaving) > at_most:
            torch.cuda.current_stream().wait_event(self._leaving.popleft()[1])

    def _coming(self, number: int) -> tuple[torch.Tensor, torch.cuda.Event]:
        tensor = torch.empty_like(self._away[number], device="cuda")
        return tensor, self._copied(tensor, self._away[number])

    def _copied(self, target: torch.Tensor, source: torch.Tensor) -> torch.cuda.Event:
        """Begin a copy once all is computed that was asked for so far; return what marks its end."""
        self._copying.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copying):
            target.copy_(source, non_blocking=True)
            return self._copying.record_event()
