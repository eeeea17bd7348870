"""The files of a checkpoint: weights, optimiser and state apart, so that what has not changed is stored once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .errors import TrainingRefused
from .snapshot import Saved

FINGERPRINT, STATE, OPTIMIZER = "fingerprint.json", "state.json", "optimizer.pt"
_BY_PRODUCTS = ("README.md",)  # what libraries write for a hub's visitors


def read_fingerprint(folder: Path) -> Any:
    """Return the fingerprint of a checkpoint; None for one of the program before, which kept none."""
    path = folder / FINGERPRINT
    return json.loads(path.read_bytes()) if path.exists() else None


def read_step(folder: Path) -> int:
    """Return the step of a checkpoint."""
    return int(json.loads((folder / "meta.json").read_bytes())["step"])


def read_state(folder: Path) -> Any:
    """Return the state beside weights and optimiser. Raises TrainingRefused when it is missing."""
    return json.loads(_there(folder, STATE).read_bytes())


class Weights:
    """The weights of a checkpoint's whole model by their names, read as they are asked for."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        self._folder = folder
        self._files = [safe_open(path, framework="pt") for path in sorted(folder.glob("*.safetensors"))]
        self._places = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118 - it is no dict

    def read(self, name: str) -> Any:
        """Return a weight on the processor. Raises TrainingRefused when it is missing."""
        if name not in self._places:
            raise TrainingRefused(f"the checkpoint in {self._folder} has no weight {name!r}: it is of another model")
        return self._places[name].get_tensor(name)


def read_optimizer(folder: Path, *, mapped: bool = False) -> Any:
    """Return the optimiser's state, on the processor; ``mapped``: read from the file as it is asked for.

    Raises TrainingRefused when it is missing.
    """
    return torch.load(_there(folder, OPTIMIZER), map_location="cpu", weights_only=True, mmap=mapped)


def write(
    folder: Path, model: Any, tokenizer: Any, saved: Saved, state: Mapping[str, Any], fingerprint: Mapping[str, Any]
) -> None:
    """Write a checkpoint. ``model`` says what is saved: an adapter, or a whole model with its tokenizer."""
    model.whole.save_pretrained(folder, state_dict=saved.weights)
    if not model.adapter:
        tokenizer.save_pretrained(folder)
    for name, content in model.beside.items():
        (folder / name).write_bytes(content)
    for name in _BY_PRODUCTS:
        (folder / name).unlink(missing_ok=True)
    torch.save(saved.optimizer, folder / OPTIMIZER)
    (folder / STATE).write_text(json.dumps(state))
    (folder / FINGERPRINT).write_text(json.dumps(fingerprint, indent=1))


def _there(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise TrainingRefused(f"the checkpoint in {folder} has no {name}: what decides the next step is lost with it")
    return folder / name
