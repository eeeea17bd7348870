"""Releases to deploy: tiny, and of every kind of file that may be served."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from platforms.targets.release import open_release, seal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from platforms.targets.base import Release

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def weights(data: bytes, kind: str = "U8") -> bytes:
    """Return a safetensors file of one tensor: of bytes, or of one number of another kind."""
    shape = [len(data)] if kind == "U8" else [1]
    header = json.dumps({"w": {"dtype": kind, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    return len(header).to_bytes(8, "little") + header + data


def make_folder(folder: Path, data: bytes, more: Mapping[str, bytes] | None = None) -> Path:
    """Fill a new folder with an adapter of these weights, and seal it."""
    folder.mkdir(parents=True)
    files = {WEIGHTS: weights(data), CONFIG: b'{"r": 8}', "README.md": b"# an adapter\n", **(more or {})}
    for name, content in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    seal(folder)
    return folder


def make_release(
    root: Path, version: int, data: bytes = b"", model: str = "ufm", more: Mapping[str, bytes] | None = None
) -> Release:
    """Return a release with weights that tell its version."""
    folder = make_folder(root / f"{model}-{version}", data or f"weights of {model} {version}".encode(), more)
    return open_release(model, version, folder)
