"""Merge: an adapter's version made one model with its base, by a Python that has torch. None of that is loaded here."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jobs.child_process import OF_A_PERSON, child_environment
from scheduler.service.deploy.release_files import fetch_part
from scheduler.service.requests.checkpoint_files import PullRefused

if TYPE_CHECKING:
    from jobs.payload.store.manifest import Manifest
    from platforms.artifacts.base import BlobStore
    from scheduler.store.versions import Version

ADAPTER = "adapter_config.json"
_NEEDED = (ADAPTER, "adapter_model.safetensors", "fingerprint.json")  # the last names the base by its digest
_PROGRAM = Path(__file__).parents[3] / "jobs" / "payload" / "trainers" / "merge.py"
_KEPT = re.compile(rf"{OF_A_PERSON.pattern}|(HF|CUDA|OMP|MKL|OPENBLAS)_[A-Z_]+")
_WORDS_SHOWN = 1_000


class Merge(NamedTuple):
    """How to merge: the folder (or name on the Hub) of the base, and a Python with torch, transformers and peft."""

    base: str
    python: str


def merge(artifacts: BlobStore, version: Version, manifest: Manifest, wanted: Merge, folder: Path) -> None:
    """Write a version's adapter, merged into its base, into the new folder. It takes minutes, and memory as the base.

    Raises PullRefused for a version without an adapter, another base than it was trained on, and a Python that lacks
    something; BadRelease for files that are damaged; StoreError, OSError.
    """
    parts = [component for component in manifest.components if component.name in _NEEDED]
    if not any(component.name == ADAPTER for component in parts):
        raise PullRefused(f"{version.name} is a whole model and no adapter. Export it without --merge")
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-adapter-", dir=folder.parent) as scratch:
        for component in parts:
            fetch_part(artifacts, version, manifest.job, component, Path(scratch) / component.name)
        words = [wanted.python, str(_PROGRAM), str(folder), "--base", wanted.base, "--adapter", scratch]
        try:
            environment = child_environment(_KEPT)
            ended = subprocess.run(
                words, capture_output=True, text=True, errors="replace", check=False, env=environment
            )
        except OSError as error:
            why = f"{wanted.python} cannot be started: {error.strerror}. Name a Python with torch by --python"
            raise PullRefused(f"{version.name} cannot be merged: {why}") from None
        if ended.returncode:
            told = ended.stderr.replace(scratch, version.name).strip()[-_WORDS_SHOWN:].rpartition("merge: ")[2]
            raise PullRefused(f"{version.name} cannot be merged: {told or f'status {ended.returncode}'}")
