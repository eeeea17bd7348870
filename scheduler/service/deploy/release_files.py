"""The files of a version that are served: its checkpoint as the store has it, without what only training needs."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from jobs.payload.store.manifest import blob_key, sha256_file
from platforms.targets.base import BadRelease
from platforms.targets.release import is_weights, may_be_served, open_release, seal

if TYPE_CHECKING:
    from pathlib import Path

    from jobs.payload.store.manifest import Component, Manifest
    from platforms.artifacts.base import BlobStore
    from platforms.targets.base import Release
    from scheduler.store.versions import Version

# What trainers write beside weights and tokenizer, of no use to whoever serves.
_OF_TRAINING = (
    "optimizer",
    "scheduler",
    "rng",
    "trainer_state",
    "training_args",
    "state.",
    "fingerprint.",
    "meta.json",
)


def release_of(artifacts: BlobStore, version: Version, manifest: Manifest, folder: Path) -> Release:
    """Return the release of a version below ``folder``; what an earlier try has fetched is used again.

    Raises BadRelease for files that are damaged and weights that are never served; StoreError, OSError.
    """
    place = folder / version.model / f"{version.number}-{version.digest[:12]}"
    if place.is_dir():
        return open_release(version.model, version.number, place)
    fresh = place.with_name(f".{place.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    served = served_parts(manifest)
    if not any(is_weights(component.name) for component in served):
        why = "its checkpoint has no weights in a format that runs no code when it is loaded"
        raise BadRelease(version.name, "prepare it", why, "Let its training save safetensors, and evaluate that")
    for component in served:
        part = fresh / component.name
        part.parent.mkdir(parents=True, exist_ok=True)
        artifacts.fetch(blob_key(manifest.job, component.sha256), part)
        if sha256_file(part) != component.sha256:
            why = f"{component.name} is damaged in the artifact store"
            raise BadRelease(version.name, "prepare it", why, f"Look at it: schedctl checkpoints verify {manifest.key}")
    seal(fresh)
    fresh.replace(place)
    return open_release(version.model, version.number, place)


def served_parts(manifest: Manifest) -> list[Component]:
    """Return the files of a checkpoint that are served."""
    return [component for component in manifest.components if _is_served(component.name)]


def forget_releases(folder: Path, model: str) -> None:
    """Remove what was fetched of a model: its targets have it."""
    shutil.rmtree(folder / model, ignore_errors=True)


def _is_served(name: str) -> bool:
    return may_be_served(name) and not name.rpartition("/")[2].startswith(_OF_TRAINING)
