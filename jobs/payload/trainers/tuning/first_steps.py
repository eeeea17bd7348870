"""The first three steps of a session, which show before hours are spent how all others will be.

All rows have the full length, and from the second step on the optimiser's state is there: no later step needs more
memory. What does not fit ends here, and so does a loss that is no number.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from .card import Device

STEPS = 3
_GIB = 1 << 30


class FirstSteps:
    """Counts them. ``tokens`` a step has, and ``whole`` is called once they have passed."""

    def __init__(self, card: Device, tokens: int, whole: Callable[[str], None]) -> None:
        """``whole`` gets what they were, in words."""
        self._card, self._tokens, self._whole = card, tokens, whole
        self._seconds: list[float] = []

    def passed(self, loss: float, seconds: float) -> bool:
        """Note a step; return whether its loss must be told at once, since it is no number."""
        if len(self._seconds) == STEPS:
            return False
        self._seconds.append(seconds)
        if len(self._seconds) == STEPS:
            self._whole(self._warning(loss))
        return not math.isfinite(loss)

    def _warning(self, loss: float) -> str:
        memory = ""
        if self._card.accelerated:
            peak = torch.cuda.max_memory_reserved() / _GIB
            memory = f"{peak:.1f} of {torch.cuda.get_device_properties().total_memory / _GIB:.1f} GiB at most, "
        # The first of them compiles, and makes the optimiser's state.
        speed = self._tokens * (STEPS - 1) / sum(self._seconds[1:])
        return f"{STEPS} steps of {self._tokens:,} tokens passed: {memory}{speed:,.0f} tokens/s, loss {loss:.4f}"
