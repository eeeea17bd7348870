"""If a step does not fit into memory, compute it in smaller parts: choose the parts, and remember what fitted.

The rows of a step do not change, so a training resumes in class E1. An 8-bit optimiser or shorter rows make it another
training (E2); they are tried last, and only if a person allows them.
"""

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


STATUS = 77  # exit status of a process whose memory was too small
STATUS_BY_LAYERS = 78  # exit status if the layers of a 4-bit base must be spread over all devices
_FOUR_BITS = 0.6  # bytes per 4-bit weight, with scales and its share of 16-bit embeddings
ALL, HALF, OFFLOAD = "all", "half", "offload"  # gradient checkpointing: the layers that compute again
LEVELS: tuple[bool | str, ...] = (False, HALF, True, OFFLOAD)
"""Gradient checkpointing from most to least memory: no layer, half, all, all with their inputs in host memory."""
CHANGES = ("optimizer", "length")  # options that --may-change allows, in the order they are changed
SHORTEST = 256  # tokens per row; shorter rows teach too little context
_MESSAGES = ("out of memory", "can't allocate memory", "cannot allocate memory")


class Fit(NamedTuple):
    """How a step is computed: rows at once, gradient checkpointing (of LEVELS), sharding, --optimizer, --length."""

    rows: int
    checkpointing: bool | str
    shared: bool
    optimizer: str = "adamw"
    length: int = 0


def smaller(
    tried: Fit, *, by_halves: bool = True, shareable: bool = True, may_change: Collection[str] = ()
) -> Fit | None:
    """Return the next way to compute a step in less memory than ``tried``; None if there is none.

    In order: half the rows; at one row, the next of LEVELS (only "all" if not ``by_halves``); sharding, if
    ``shareable``; an 8-bit optimiser, then rows half as long, if ``may_change`` has these.
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
    """Return the command-line options for a process that computes steps by ``fit``; ``wanted`` was requested."""
    words = ["--rows-at-once", str(fit.rows)]
    if fit.checkpointing:
        words += ["--gradient-checkpointing", ALL if fit.checkpointing is True else str(fit.checkpointing)]
    words += ["--shard", "on"] if fit.shared and not wanted.shared else []
    changed = {name: getattr(wanted, name) for name in CHANGES if getattr(fit, name) != getattr(wanted, name)}
    for name, was in changed.items():
        words += [f"--{name}", str(getattr(fit, name)), "--changed", f"{name}={was}"]
    return words


def kept_bytes(parameters: int, options: argparse.Namespace, itemsize: int) -> int:
    """Return the bytes of weights (``itemsize`` each if frozen), gradients and optimiser; an adapter is ignored."""
    if options.lora:
        return int((_FOUR_BITS if options.bits == 4 else itemsize) * parameters)
    return (10 if options.optimizer == "adamw8bit" else 16) * parameters


class TooLargeForOneDevice(MemoryError):
    """A 4-bit base does not fit on one device: one process must spread its layers over all devices."""


def is_too_small(error: BaseException) -> bool:
    """Return whether an error means that the memory of the device or of the host was too small."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _MESSAGES)
    )


# A record of how steps fitted when memory was short, for later trainings of the same model on the same device.
FORMAT = 1
CHANGED = "changed for memory"  # key of a fingerprint's place: options that were changed permanently
_FOLDER = "fits"
_LEFT_OUT = ("bitsandbytes", "scipy")  # blocked by start.py unless an 8-bit optimiser was requested
_SAME = ("lora", "bits", "length", "optimizer")  # options that decide a step's memory, besides model and device


def recall(options: argparse.Namespace, facts: Mapping[str, Any], before: Any, parent: Any) -> None:
    """Set the options that fitted, by the fingerprint of this job's checkpoint, else the parent's, else the machine."""
    for name in () if before is None else before["place"].get(CHANGED, ()):
        if name not in options.changed:
            options.changed[name] = getattr(options, name)
            setattr(options, name, before["job"][name])
    places = (_of_checkpoint(before, facts), _of_checkpoint(parent, facts), _of_machine(options.cache, facts))
    if (path := next(filter(None, places), None)) is not None:
        _adopt_options(options, path)
    if options.optimizer == "adamw8bit":
        for name in _LEFT_OUT:
            if sys.modules.get(name, sys) is None:
                del sys.modules[name]


def facts_of(options: argparse.Namespace, model: str, card: "Device", devices: int) -> dict[str, Any]:
    """Return the facts that decide whether a step fits, with the requested options; ``model`` is a digest."""
    wanted = {name: options.changed.get(name, getattr(options, name)) for name in _SAME}
    return {**wanted, "model": model, "device": card.name, "devices": devices, "precision": card.precision}


def keep(options: argparse.Namespace, facts: Mapping[str, Any], rows_at_once: int) -> None:
    """Save, for later jobs on this machine, how steps with these facts fit; nothing unless memory was short."""
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
    except OSError as error:  # training goes on
        print(f"finetune: how steps fit cannot be saved for the next job: {error}", file=sys.stderr)


def _adopt_options(options: argparse.Namespace, values: Mapping[str, Any]) -> None:
    options.rows_at_once = min(values["rows at once"], options.rows_at_once or options.batch)
    both = (options.gradient_checkpointing, values["gradient checkpointing"])
    options.gradient_checkpointing = max(both, key=LEVELS.index)
    options.shard = "on" if values.get("shared out") is True or values.get("layers apart") else options.shard
    for name, value in values.get("changed", {}).items():
        if name in options.may_change and name not in options.changed:
            options.changed[name] = getattr(options, name)
            setattr(options, name, value)


def _of_checkpoint(fingerprint: Any, facts: Mapping[str, Any]) -> Any:
    """Return the ``place`` of a checkpoint's fingerprint if its steps are alike and memory was short; else None."""
    if fingerprint is None or not fingerprint["place"].get("memory was short"):
        return None
    job, place = fingerprint["job"], fingerprint["place"]
    changed = place.get(CHANGED, ())
    same_job = all(job.get(name) == facts[name] for name in (*_SAME, "model") if name not in changed)
    same_device = all(place.get(name) == facts[name] for name in ("device", "devices", "precision"))
    return {**place, "changed": {name: job[name] for name in changed}} if same_job and same_device else None


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
