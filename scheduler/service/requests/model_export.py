"""Export: a version as a plain folder that others can use. Weights and what goes with them, a card, and digests."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jobs.payload.store.manifest import sha256_file
from scheduler.service.requests.checkpoint_files import PullRefused, pull

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobs.payload.store.manifest import Manifest
    from platforms.artifacts.base import BlobStore

CARD, FACTS, SUMS = "README.md", "version.json", "SHA256SUMS"
_WEIGHTS = (".safetensors", ".npy", ".npz", ".gguf")
# Nothing that runs code when it is loaded: pickles go by many names, and only what is known not to be one is taken.
_PLAIN = (*_WEIGHTS, ".json", ".jinja", ".model", ".txt", ".tiktoken")
_OF_TRAINING = ("optimizer", "scheduler", "rng", "trainer_state", "training_args", "state.")  # of no use without it
_OURS = {CARD, FACTS, SUMS, "meta.json"}


class Exported(NamedTuple):
    """Which files the folder has, and which of the checkpoint it does not."""

    files: tuple[str, ...]
    left_out: tuple[str, ...]


def export(artifacts: BlobStore, manifest: Manifest, card: str, facts: Mapping[str, Any], target: Path) -> Exported:
    """Make the new folder ``target`` of a version's files, every byte checked; it appears only when it is whole.

    Raises PullRefused for a checkpoint without weights that can be given away, StoreError, OSError.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise PullRefused(f"{target} is there already and not an empty folder. Name another one")
    names = [component.name for component in manifest.components]
    taken = sorted(name for name in names if _is_plain(name))
    if not any(name.endswith(_WEIGHTS) for name in taken):
        raise PullRefused(
            f"{manifest.key} has no weights in a format that runs no code when it is loaded ({', '.join(_WEIGHTS)}). "
            f"Let its training save safetensors, or take all as it is: schedctl checkpoints pull {manifest.job} DIR"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        whole, made = Path(scratch) / "whole", Path(scratch) / "made"
        pull(artifacts, manifest, whole)
        for name in taken:
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(whole / name, made / name)
        (made / CARD).write_text(card, encoding="utf-8")
        (made / FACTS).write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        files = sorted([*taken, CARD, FACTS])
        (made / SUMS).write_text("".join(f"{sha256_file(made / name)}  {name}\n" for name in files), encoding="utf-8")
        made.chmod(0o755)
        made.replace(target)
    return Exported((*files, SUMS), tuple(sorted(set(names) - set(taken))))


def _is_plain(name: str) -> bool:
    last = name.rpartition("/")[2]
    return last not in _OURS and last.endswith(_PLAIN) and not last.startswith(_OF_TRAINING)
