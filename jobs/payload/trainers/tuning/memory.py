"""What to try next when the memory did not hold a step: the same step, computed in smaller parts.

The rows of a step, and so its meaning, do not change by that: a training goes on in the class E1. An optimiser in 8
bits and shorter rows make another training of it (E2), and are tried last, where a person allowed it.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import NamedTuple

STATUS = 77  # with which a process ends whose memory was too small
STATUS_BY_LAYERS = 78  # with which processes end whose base in 4 bits must lie on all their devices
_FOUR_BITS = 0.6  # bytes of a weight in 4 bits, with its scales and its share of embeddings in 16
ALL, HALF, OFFLOAD = "all", "half", "offload"  # the layers whose activations are computed again
LEVELS: tuple[bool | str, ...] = (False, HALF, True, OFFLOAD)
"""Of gradient checkpointing, each with less memory: of no layer, of half, of all, of all with inputs in host memory."""
CHANGES = ("optimizer", "length")  # what may be changed of a training, in this order
SHORTEST = 256  # tokens a row; with fewer a model learns nothing of what lies further apart
_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory")


class Fit(NamedTuple):
    """How a step is computed: so many rows at a time on a device, activations computed again, weights shared out.

    ``checkpointing`` is one of LEVELS. ``optimizer`` and ``length`` are the options of these names.
    """

    rows: int
    checkpointing: bool | str
    shared: bool
    optimizer: str = "adamw"
    length: int = 0


def smaller(
    tried: Fit, *, by_halves: bool = True, shareable: bool = True, may_change: Collection[str] = ()
) -> Fit | None:
    """Return what needs less memory than what was tried, or None.

    That is half the rows; at one row the next of LEVELS (where it does not go ``by_halves``, activations of all layers
    computed again, and no further); then weights shared out over the devices, if they are ``shareable``; then, of
    CHANGES, what may be changed: an optimiser in 8 bits, and rows half as long.
    """
    if tried.rows > 1:
        return tried._replace(rows=tried.rows // 2)
    levels = LEVELS[LEVELS.index(tried.checkpointing) + 1 :]
    if level := next((each for each in levels if by_halves or each is True), None):
        return tried._replace(checkpointing=level)
    if shareable and not tried.shared:
        return tried._replace(shared=True)
    if "optimizer" in may_change and tried.optimizer == "adamw":
        return tried._replace(optimizer="adamw8bit")
    if "length" in may_change and tried.length >= 2 * SHORTEST:
        return tried._replace(length=tried.length // 2)
    return None


def words_for(fit: Fit, wanted: Fit) -> list[str]:
    """Return the options by which a process computes as ``fit`` says, where something else was asked for."""
    words = ["--rows-at-once", str(fit.rows)]
    if fit.checkpointing:
        words += ["--gradient-checkpointing", ALL if fit.checkpointing is True else str(fit.checkpointing)]
    words += ["--shard", "on"] if fit.shared and not wanted.shared else []
    changed = {name: getattr(wanted, name) for name in CHANGES if getattr(fit, name) != getattr(wanted, name)}
    for name, was in changed.items():
        words += [f"--{name}", str(getattr(fit, name)), "--changed", f"{name}={was}"]
    return words


def kept_bytes(parameters: int, options: argparse.Namespace, itemsize: int) -> int:
    """Return the bytes that a model takes for good: its weights, and gradients and optimiser of all that are trained.

    ``itemsize`` is that of a frozen weight. What an adapter takes is left out: a hundredth of its base.
    """
    if options.lora:
        return int((_FOUR_BITS if options.bits == 4 else itemsize) * parameters)
    return (10 if options.optimizer == "adamw8bit" else 16) * parameters


class TooLargeForOneDevice(MemoryError):
    """A base in 4 bits does not fit one device: one process must lay its layers on all."""


def is_too_small(error: BaseException) -> bool:
    """Whether an error means that memory, of the device or the machine, was too small."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _WORDS)
    )
