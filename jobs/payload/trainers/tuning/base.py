"""Checks of a base model before it is loaded: that it exists and is complete.

Without these checks, libraries fill missing weights with random numbers, warn, and go on. Their errors for truncated
files and missing folders do not say what to do.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from .errors import TrainingRefused

_INDEX = "model.safetensors.index.json"
_LENGTH_BYTES = 8  # first bytes of a safetensors file: the length of its header
_HEADER_BYTES_MAX = 100 << 20
_NAMED_MAX = 3  # missing weights or files that a message lists
_FACTOR_MAX = 1e6  # a larger RoPE factor is a mistake and is ignored
_EDGE_BYTES = 1 << 20  # bytes at each end of a file that its digest covers
_FETCH_AGAIN = (
    "Fetch it again, or name another model: --model input:NAME, with inputs = { NAME = ... } in the job's definition"
)


def find_base(source: str) -> str:
    """Return the name on the Hub, or the absolute path of a folder. Raises TrainingRefused if that is incomplete."""
    folder = Path(source)
    if folder.is_dir():
        _check(folder)
        return str(folder.resolve())
    if source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise TrainingRefused(f"there is no model in {source}: no such folder. {_FETCH_AGAIN}")
    return source


def check_loaded(source: str, missing: Collection[str]) -> None:
    """Raise TrainingRefused if weights are ``missing``; libraries have initialised those at random."""
    if missing:
        listed = ", ".join(sorted(missing)[:_NAMED_MAX]) + (", ..." if len(missing) > _NAMED_MAX else "")
        raise TrainingRefused(f"the model in {source} lacks {len(missing)} of its weights ({listed}). {_FETCH_AGAIN}")


def base_digest(source: str) -> str:
    """Return a digest of a base model that does not depend on its path; the name itself for a model on the Hub.

    It covers config.json, and the name, size, first and last MiB of each file of weights. Reading 13 GB would take as
    long as a dozen steps, and all bytes of an input were checked when it was fetched.
    """
    folder = Path(source)
    if not folder.is_dir():
        return source
    whole = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        size = path.stat().st_size
        with path.open("rb") as file:
            edges = file.read(_EDGE_BYTES)
            file.seek(max(0, size - _EDGE_BYTES))
            edges += file.read(_EDGE_BYTES)
        whole.update(f"{path.name} {size} {hashlib.sha256(edges).hexdigest()}\n".encode())
    return whole.hexdigest()


def check_length(length: int, config: Mapping[str, Any], source: str) -> None:
    """Raise TrainingRefused if rows are longer than the model of a config.json has positions."""
    most = positions(config)
    if most is not None and length > most:
        raise TrainingRefused(
            f"--length {length} is more than the {most} positions of the model in {source}: it cannot learn beyond "
            f"them. Say --length {most} or less, or scale its positions in config.json (rope_scaling)"
        )


def positions(config: Mapping[str, Any]) -> int | None:
    """Return the number of positions of a model, with RoPE scaling; None if it is unlimited or unknown."""
    text = config.get("text_config")
    config = text if isinstance(text, dict) else config
    attention = config.get("attn_config")
    if config.get("alibi") or (isinstance(attention, dict) and attention.get("alibi")):
        return None
    names = ("max_position_embeddings", "n_positions", "max_seq_len")
    length = next((size for name in names if isinstance(size := config.get(name), int) and size > 0), None)
    return None if length is None else max(length, *(_reach(scaling, length) for scaling in _scalings(config)), 0)


def _scalings(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the scalings of rotary positions: one, or one per kind of layer."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return (
        [part for part in (scaling, *scaling.values()) if isinstance(part, dict)] if isinstance(scaling, dict) else []
    )


def _reach(scaling: dict[str, Any], length: int) -> int:
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
    if not isinstance(factor, int | float) or not 1 < factor < _FACTOR_MAX:
        return length
    return int(factor * (original if isinstance(original, int) else length))


def _check(folder: Path) -> None:
    if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        raise TrainingRefused(
            f"{folder} has an adapter, but --model must name the base that it was trained on. To start from an "
            "adapter, set start_from in the job's definition"
        )
    _read(folder / "config.json")
    files = sorted(folder.glob("*.safetensors"))
    if (folder / _INDEX).is_file():
        named = set(_read(folder / _INDEX).get("weight_map", {}).values())
        if lost := sorted(named - {path.name for path in files}):
            raise TrainingRefused(f"the model in {folder} lacks {', '.join(lost[:_NAMED_MAX])}. {_FETCH_AGAIN}")
    elif not files and not any(folder.glob("*.bin")):
        raise TrainingRefused(f"the model in {folder} has no weights: neither *.safetensors nor *.bin. {_FETCH_AGAIN}")
    for path in files:
        if not _is_whole(path):
            raise TrainingRefused(
                f"{path} is not complete: it is shorter than its header says, or damaged. {_FETCH_AGAIN}"
            )


def _read(path: Path) -> Any:
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise TrainingRefused(f"{path.parent} is no model: it has no {path.name}. {_FETCH_AGAIN}") from None
    except ValueError as error:
        raise TrainingRefused(f"{path} cannot be read: {error}. {_FETCH_AGAIN}") from None
    if not isinstance(config, dict):
        raise TrainingRefused(f"{path} cannot be read: it is not a JSON object. {_FETCH_AGAIN}")
    return config


def _is_whole(path: Path) -> bool:
    """Return whether a safetensors file has the length that its header gives. Its digest was already checked."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 0 < length <= min(size, _HEADER_BYTES_MAX):
            return False
        try:
            parts = json.loads(file.read(length))
            ends = [part["data_offsets"][1] for name, part in parts.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return False
    return size == _LENGTH_BYTES + length + max(ends, default=0)
