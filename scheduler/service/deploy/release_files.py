"""The files of a version that are served: its checkpoint as the store has it, without what only training needs."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from jobs.payload.store.manifest import blob_key, sha256_file
from platforms.targets.base import BadRelease
from platforms.targets.release import may_be_served, open_release, seal

if TYPE_CHECKING:
    from pathlib import Path

    from jobs.payload.store.manifest import Manifest
    from platforms.artifacts.base import BlobStore
    from platforms.targets.base import Release
    from scheduler.store.versions import Version

# What trainers write beside weights and tokenizer; pickles of optimisers are left behind by their kind.
_FOR_TRAINING = frozenset({"optimizer.npy", "optimizer.safetensors", "state.json", "fingerprint.json", "meta.json"})
_OF_TRAINING = frozenset({".pt", ".pth", ".bin"})


def release_of(artifacts: BlobStore, version: Version, manifest: Manifest, folder: Path) -> Release:
    """Return the release of a version below ``folder``; what an earlier try has fetched is used again.

    Raises BadRelease for files that are damaged, or of a kind that is never served; StoreError, OSError.
    """
    place = folder / version.model / f"{version.number}-{version.digest[:12]}"
    if place.is_dir():
        return open_release(version.model, version.number, place)
    fresh = place.with_name(f".{place.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    served = [one for one in manifest.components if not _is_training(one.name)]
    for component in served:
        if not may_be_served(component.name):
            raise BadRelease(version.name, "prepare it", f"{component.name} is no kind of file that is served")
        part = fresh / component.name
        part.parent.mkdir(parents=True, exist_ok=True)
        artifacts.fetch(blob_key(manifest.job, component.sha256), part)
        if sha256_file(part) != component.sha256:
            why = f"{component.name} is damaged in the artifact store"
            raise BadRelease(version.name, "prepare it", why, f"Look at it: schedctl checkpoints verify {manifest.key}")
    if not served:
        raise BadRelease(version.name, "prepare it", "its checkpoint has no file that is served")
    seal(fresh)
    fresh.replace(place)
    return open_release(version.model, version.number, place)


def forget_releases(folder: Path, model: str) -> None:
    """Remove what was fetched of a model: its targets have it."""
    shutil.rmtree(folder / model, ignore_errors=True)


def _is_training(name: str) -> bool:
    last = name.rpartition("/")[2]
    training = "optimizer" in last or "scheduler" in last or "rng" in last
    return last in _FOR_TRAINING or (training and any(last.endswith(suffix) for suffix in _OF_TRAINING))
