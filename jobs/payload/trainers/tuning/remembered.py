"""How a step was computed where memory was short, for those who train the same model on the same card after that.

A checkpoint remembers it for its own job and for jobs that begin with it, on whatever machine they run. A file beside
the packed rows remembers it for every job of this machine, from the third step on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .memory import CHANGES, LEVELS

if TYPE_CHECKING:
    from .card import Device  # with torch

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
