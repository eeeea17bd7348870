"""What to try next when the memory did not hold a step: the same step, computed in smaller parts.

The rows of a step, and so its meaning, never change: a training goes on in the class E1. Other remedies (an optimiser
in 8 bits, shorter rows) would make another training of it, and are a person's to choose.
"""

from __future__ import annotations

from typing import NamedTuple

STATUS = 77  # with which a process ends whose memory was too small
_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory")


class Fit(NamedTuple):
    """How a step is computed: so many rows at a time on a device, with or without keeping activations."""

    rows: int
    checkpointing: bool


def smaller(tried: Fit) -> Fit | None:
    """Return what needs less memory than what was tried, or None: half the rows, at one row recomputed activations."""
    if tried.rows > 1:
        return Fit(tried.rows // 2, tried.checkpointing)
    return None if tried.checkpointing else Fit(1, checkpointing=True)


def is_too_small(error: BaseException) -> bool:
    """Whether an error means that memory, of the device or the machine, was too small."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _WORDS)
    )
