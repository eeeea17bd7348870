"""Fingerprints: everything that decides the next step, and how exactly a checkpoint can be resumed.

``job`` describes what is trained: if a value differs, it is another training. ``place`` describes where and how it is
computed: if a value differs, rows, rates and state are the same, and only rounding differs. Classes of a resumption:

E0  bit-exact: nothing has changed, and --deterministic is set
E1  same state: only values of ``place`` have changed, or --deterministic is not set
E2  inexact: anything else; refused unless the user accepts it
"""

import argparse
import platform
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple

from .memory import CHANGED

if TYPE_CHECKING:
    from .devices.card import Device  # with torch

FORMAT = 1
EXACT, SAME_STATE, INEXACT = "E0", "E1", "E2"
_OPTIONS = ("lora", "alpha", "dropout", "bits", "length", "rate", "warmup", "schedule", "optimizer", "decay", "clip")
_LIBRARIES = ("torch", "transformers", "tokenizers", "peft", "bitsandbytes", "numpy")
_OF_ZERO = ("deepspeed",)


class Resumption(NamedTuple):
    """The class of a resumption, and what has changed, as (name, old, new)."""

    exactness: str
    changed: tuple[tuple[str, Any, Any], ...]

    def text(self) -> str:
        """Return the changes as text."""
        return ", ".join(f"{name} was {was} and is {now}" for name, was, now in self.changed) or "nothing has changed"


def fingerprint(
    options: argparse.Namespace, digests: Mapping[str, str], training: Mapping[str, int], place: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fingerprint. ``digests`` are of model, tokenizer and data; ``training`` has seed and target step."""
    job = {name: getattr(options, name) for name in _OPTIONS}
    job |= {"rows a step": options.batch * options.accumulate, **digests, **training}
    if options.precision == "fp8":
        job["products of the base"] = "fp8"
    if options.schedule == "constant":
        del job["target step"]  # it decides only the last step
    return {"format": FORMAT, "job": job, "place": dict(place)}


def place(options: argparse.Namespace, card: "Device", devices: int, rows_at_once: int) -> dict[str, Any]:
    """Return the part of the fingerprint that says where and how steps are computed."""
    return {
        "device": card.name,
        "devices": devices,
        "rows at once": rows_at_once,
        "memory was short": options.rows_at_once is not None,
        "precision": card.precision,
        "compiled": options.compile == "on" or (options.compile == "auto" and card.compiles),
        "gradient checkpointing": options.gradient_checkpointing,
        "deterministic": options.deterministic,
        # Omitted if unused, so that fingerprints of older checkpoints still match.
        **({"shared out": _shared(options)} if options.shared else {}),
        **({"layers apart": True} if options.spread > 1 else {}),
        **({"documents apart": "always"} if options.apart else {}),
        **({CHANGED: sorted(options.changed)} if options.changed else {}),
        "python": platform.python_version(),
        **versions(_LIBRARIES + _OF_ZERO if options.zero else _LIBRARIES),
    }


def _shared(options: argparse.Namespace) -> Any:
    return f"ZeRO-{options.zero}{', offloaded' if options.offload else ''}" if options.zero else True


def versions(libraries: Iterable[str]) -> dict[str, str]:
    """Return the versions of the libraries that are installed."""
    result = {}
    for name in libraries:
        with suppress(metadata.PackageNotFoundError):
            result[name] = metadata.version(name)
    return result


def compare(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> Resumption:
    """Return how exactly a checkpoint can be resumed. ``before`` is None for checkpoints without a fingerprint."""
    if before is None:
        return Resumption(INEXACT, (("program", "one that kept no fingerprint", "this one"),))
    if before.get("format") != now["format"]:
        return Resumption(INEXACT, (("fingerprint's format", before.get("format"), now["format"]),))
    changed = {part: _differences(before[part], now[part]) for part in ("job", "place")}
    if changed["job"]:
        return Resumption(INEXACT, changed["job"] + changed["place"])
    if changed["place"] or not now["place"]["deterministic"]:
        return Resumption(SAME_STATE, changed["place"])
    return Resumption(EXACT, ())


def changed_alone(before: Mapping[str, Any] | None, now: Mapping[str, Any], names: Collection[str]) -> bool:
    """Return whether only ``names`` have changed: options that a person allowed to change if memory is short."""
    if before is None or before.get("format") != now["format"] or not names:
        return False
    consequences = {"packed in parts"} if "length" in names else set()
    return {name for name, _, _ in _differences(before["job"], now["job"])} <= {*names, *consequences}


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[tuple[str, Any, Any], ...]:
    names = sorted(before.keys() | now.keys())
    return tuple((name, before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name))
