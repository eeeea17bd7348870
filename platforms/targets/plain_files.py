"""Plain files: which of a version's files leave the house, to a target or as an export, and what they may hold.

Pickles run code where they are loaded. So weights are safetensors or plain arrays of numbers, whatever else is text,
and the name, the first bytes and the header of each file have to say so. What only training needs stays behind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from platforms.targets.tensors import (
    BadTensors,
    check_array,
    check_arrays,
    check_pairs,
    check_safetensors,
    read_header,
)

WEIGHTS = (".safetensors", ".npy", ".npz", ".gguf")
KINDS = (*WEIGHTS, ".json", ".jsonl", ".md", ".txt", ".model", ".jinja", ".tiktoken")
_NAMES = frozenset({"LICENSE", "NOTICE"})
# What trainers write beside weights and tokenizer, of no use to whoever has no training to go on with.
_OF_TRAINING = (
    *("optimizer", "scheduler", "rng", "trainer_state", "training_args"),
    *("state.", "fingerprint.", "meta.json"),
)
_REFERENCE = "ref/"  # the adapter that preferences compare with
_PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".dill"})
_ZIP, _PICKLE = b"PK", tuple(bytes([0x80, protocol]) for protocol in range(1, 6))
_JSON_MAX_BYTES = 1 << 25
_INDEX = ".safetensors.index.json"
_CHECKS: Mapping[str, Callable[[Path], None]] = {
    ".safetensors": check_safetensors,
    ".npy": check_array,
    ".npz": check_arrays,
}


def is_weights(name: str) -> bool:
    """Tell whether a file of this name holds weights."""
    return name.lower().endswith(WEIGHTS)


def leaves(name: str) -> bool:
    """Tell whether a checkpoint's file of this name is of use elsewhere; what it holds is looked at later."""
    last = name.rpartition("/")[2]
    plain = last in _NAMES or last.lower().endswith(KINDS)
    return plain and not last.startswith(_OF_TRAINING) and not name.startswith(_REFERENCE)


def check_file(path: Path, name: str) -> None:
    """Read a file and refuse one that runs code where it is loaded, or weights that nobody can use.

    Raises BadTensors, OSError.
    """
    suffix = path.suffix.lower()
    with path.open("rb") as stream:
        head = stream.read(16)
    if suffix in _PICKLES or head.startswith(_PICKLE) or (head.startswith(_ZIP) and suffix != ".npz"):
        raise BadTensors("it is a pickle or an archive that may hold one", "Save the weights as safetensors")
    if suffix not in KINDS and path.name not in _NAMES:
        raise BadTensors("it is no kind of file that is served", f"Kinds: {' '.join(sorted(KINDS))}")
    if suffix in _CHECKS:
        _CHECKS[suffix](path)
    elif name.endswith("config.json"):
        told = _document(path)
        if not isinstance(told, dict) or "auto_map" in told:
            raise BadTensors("it asks for code of its own (auto_map)", "Serve models of the server's own code alone")


def check_whole(folder: Path, names: Collection[str]) -> None:
    """Hold the weights of a folder against each other: halves of adapters, and parts of an index.

    Raises BadTensors, OSError.
    """
    headers = {name: read_header(folder / name) for name in sorted(names) if name.endswith(".safetensors")}
    check_pairs(headers)
    for name in sorted(names):
        if not name.endswith(_INDEX):
            continue
        told = _document(folder / name)
        listed = told.get("weight_map") if isinstance(told, dict) else None
        if not isinstance(listed, dict):
            raise BadTensors(f"{name} has no weight_map")
        parent = name.rpartition("/")[0]
        where = {f"{parent}/{part}" if parent else str(part) for part in listed.values()}
        there = {tensor.name for part in where & headers.keys() for tensor in headers[part]}
        if missing := sorted(listed.keys() - there):
            raise BadTensors(f"{missing[0]} is in {name}, and no file here has it")


def _document(path: Path) -> Any:
    with path.open("rb") as stream:
        data = stream.read(_JSON_MAX_BYTES + 1)
    if len(data) > _JSON_MAX_BYTES:
        raise BadTensors(f"it is larger than {_JSON_MAX_BYTES >> 20} MiB", "Export the version anew")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise BadTensors("it is no JSON", "Export the version anew") from None
