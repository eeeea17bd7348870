"""The files of a version that leave the house: its checkpoint as the store has it, without what only training needs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection

from jobs.payload.store.manifest import Component, Manifest, blob_key, sha256_file
from platforms.artifacts.base import BlobStore
from platforms.targets.base import BadRelease, Release
from platforms.targets.release import WEIGHTS, is_weights, leaves, open_release, seal
from platforms.targets.vllm import MAX_BYTES as PROBE_BYTES_MAX
from platforms.targets.vllm import NAME as PROBE
from scheduler.store import checkpoints, evaluations, jobs
from scheduler.store.versions import Version


class Recorded(NamedTuple):
    """What an evaluation wrote down of a version beside its scores: a file, and the job whose it is."""

    job: str
    component: Component


def probe_of_version(tx: Connection, version: Version) -> Recorded | None:
    """Return the answer to a fixed prompt that the newest scored evaluation recorded, or None."""
    for evaluation in reversed(evaluations.of_version(tx, version)):
        record = jobs.find(tx, evaluation.job) if evaluation.state == "scored" else None
        saved = checkpoints.find(tx, record.checkpoint) if record is not None and record.checkpoint else None
        for component in saved.manifest.components if saved is not None else ():
            if component.name == f"output/{PROBE}" and component.bytes <= PROBE_BYTES_MAX:
                return Recorded(evaluation.job, component)
    return None


def release_of(
    artifacts: BlobStore, version: Version, manifest: Manifest, folder: Path, probe: Recorded | None = None
) -> Release:
    """Return the release of a version below ``folder``; what an earlier try has fetched is used again.

    A ``probe`` goes along as ``probe.json``, unless the checkpoint has one. Raises BadRelease for files that are
    damaged and weights that are never served; StoreError, OSError.
    """
    place = folder / version.model / f"{version.number}-{version.digest[:12]}"
    if not place.is_dir():

        def add(fresh: Path) -> None:
            if probe is not None and not (fresh / PROBE).exists():
                fetch_part(artifacts, version, probe.job, probe.component, fresh / PROBE)

        make_release(artifacts, version, manifest, place, add)
    return open_release(version.model, version.number, place)


def make_release(
    artifacts: BlobStore, version: Version, manifest: Manifest, place: Path, add: Callable[[Path], None] | None = None
) -> None:
    """Make the new folder ``place`` of a version's files, sealed; it appears only when it is whole.

    ``add`` puts more into it before it is sealed. Raises as release_of.
    """
    fresh = place.with_name(f".{place.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    served = served_parts(manifest)
    if not any(is_weights(component.name) for component in served):
        why = f"its checkpoint has no weights in a format that runs no code when it is loaded ({', '.join(WEIGHTS)})"
        raise BadRelease(version.name, "prepare it", why, "Let its training save safetensors, and evaluate that")
    for component in served:
        fetch_part(artifacts, version, manifest.job, component, fresh / component.name)
    if add is not None:
        add(fresh)
    seal(fresh)
    fresh.replace(place)


def fetch_part(artifacts: BlobStore, version: Version, job: str, component: Component, part: Path) -> None:
    """Copy one file of a job's to ``part``. Raises BadRelease if it is damaged; StoreError, OSError."""
    part.parent.mkdir(parents=True, exist_ok=True)
    artifacts.fetch(blob_key(job, component.sha256), part)
    if sha256_file(part) != component.sha256:
        why = f"{component.name} is damaged in the artifact store"
        raise BadRelease(version.name, "prepare it", why, f"Look at it: schedctl checkpoints verify {job}")


def served_parts(manifest: Manifest) -> list[Component]:
    """Return the files of a checkpoint that leave the house."""
    return [component for component in manifest.components if leaves(component.name)]
