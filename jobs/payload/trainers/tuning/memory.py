"""What to try next when the memory did not hold a step: the same step, computed in smaller parts.

The rows of a step, and so its meaning, do not change by that: a training goes on in the class E1. An optimiser in 8
bits and shorter rows make another training of it (E2), and are tried last, where a person allowed it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .devices.card import Device  # with torch


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


# How a step was computed where memory was short, for those who train the same model on the same card after that.
FORMAT = 1
CHANGED = "changed for memory"  # of a fingerprint's place: what else than asked for is trained with, for good
_FOLDER = "fits"
_LEFT_OUT = ("bitsandbytes", "scipy")  # of a process that was not asked for an optimiser in 8 bits
_SAME = ("lora", "bits", "length", "optimizer")  # options of which a step's memory depends, beside model and card


def recall(options: argparse.Namespace, facts: Mapping[str, Any], before: Any, parent: Any) -> None:
    """Begin with what fitted: by this job's checkpoint ``before``, the ``parent``'s, or this machine's file.

    Both are fingerprints, or None. What was changed of this job for memory's sake stays so on every card.
    """
    for name in () if before is None else before["place"].get(CHANGED, ()):
        if name not in options.changed:
            options.changed[name] = getattr(options, name)
            setattr(options, name, before["job"][name])
    places = (_of_checkpoint(before, facts), _of_checkpoint(parent, facts), _of_machine(options.cache, facts))
    if (path := next(filter(None, places), None)) is not None:
        _take(options, path)
    if options.optimizer == "adamw8bit":
        for name in _LEFT_OUT:
            if sys.modules.get(name, sys) is None:
                del sys.modules[name]


def facts_of(options: argparse.Namespace, model: str, card: Device, devices: int) -> dict[str, Any]:
    """Return what decides whether a step fits, as requested; ``model`` is a digest."""
    wanted = {name: options.changed.get(name, getattr(options, name)) for name in _SAME}
    return {**wanted, "model": model, "device": card.name, "devices": devices, "precision": card.precision}


def keep(options: argparse.Namespace, facts: Mapping[str, Any], rows_at_once: int) -> None:
    """Write down for this machine how steps of this kind fit, if memory was short."""
    if options.rows_at_once is None:
        return
    document = {
        "format": FORMAT,
        "facts": facts,
        "rows at once": rows_at_once,
        "gradient checkpointing": options.gradient_checkpointing,
        "shared out": (options.shared and not options.zero) or options.spread > 1,
        "changed": {name: getattr(options, name) for name in options.changed},
    }
    path = _path(options.cache, facts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps(document, indent=1))
        scratch.replace(path)
    except OSError as error:  # training goes on, and the next one tries again
        print(f"finetune: how steps fit is not remembered for the next job: {error}", file=sys.stderr)


def _take(options: argparse.Namespace, values: Mapping[str, Any]) -> None:
    options.rows_at_once = min(values["rows at once"], options.rows_at_once or options.batch)
    both = (options.gradient_checkpointing, values["gradient checkpointing"])
    options.gradient_checkpointing = max(both, key=LEVELS.index)
    options.shard = "on" if values.get("shared out") is True or values.get("layers apart") else options.shard
    for name, value in values.get("changed", {}).items():
        if name in options.may_change and name not in options.changed:
            options.changed[name] = getattr(options, name)
            setattr(options, name, value)


def _of_checkpoint(fingerprint: Any, facts: Mapping[str, Any]) -> Any:
    """Return the place of a checkpoint that was made by steps of this kind, in short memory."""
    if fingerprint is None or not fingerprint["place"].get("memory was short"):
        return None
    job, place = fingerprint["job"], fingerprint["place"]
    changed = place.get(CHANGED, ())
    alike = all(job.get(name) == facts[name] for name in (*_SAME, "model") if name not in changed)
    there = all(place.get(name) == facts[name] for name in ("device", "devices", "precision"))
    return {**place, "changed": {name: job[name] for name in changed}} if alike and there else None


def _of_machine(cache: Path, facts: Mapping[str, Any]) -> Any:
    try:
        values = json.loads(_path(cache, facts).read_bytes())
        whole = (
            values["format"] == FORMAT and int(values["rows at once"]) > 0 and values["changed"].keys() <= set(CHANGES)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return values if whole else None


def _path(cache: Path, facts: Mapping[str, Any]) -> Path:
    return cache / _FOLDER / f"{hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]}.json"
