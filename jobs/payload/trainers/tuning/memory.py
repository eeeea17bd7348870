"""What to try next when the memory did not hold a step: the same step, computed in smaller parts.

The rows of a step, and so its meaning, never change: a training goes on in the class E1. Other remedies (an optimiser
in 8 bits, shorter rows) would make another training of it, and are a person's to choose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import argparse

STATUS = 77  # with which a process ends whose memory was too small
_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory")


class Fit(NamedTuple):
    """How a step is computed: so many rows at a time on a device, activations computed again, weights shared out."""

    rows: int
    checkpointing: bool
    shared: bool


def smaller(tried: Fit) -> Fit | None:
    """Return what needs less memory than what was tried, or None.

    That is half the rows; at one row recomputed activations; then weights shared out over the devices.
    """
    if tried.rows > 1:
        return tried._replace(rows=tried.rows // 2)
    if not tried.checkpointing:
        return tried._replace(checkpointing=True)
    return None if tried.shared else tried._replace(shared=True)


def kept_bytes(parameters: int, options: argparse.Namespace, itemsize: int) -> int:
    """Return the bytes that a model takes for good: its weights, and gradients and optimiser of all that are trained.

    ``itemsize`` is that of a frozen weight. What an adapter takes is left out: a hundredth of its base.
    """
    if options.lora:
        return itemsize * parameters
    return (10 if options.optimizer == "adamw8bit" else 16) * parameters


def is_too_small(error: BaseException) -> bool:
    """Whether an error means that memory, of the device or the machine, was too small."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _WORDS)
    )
