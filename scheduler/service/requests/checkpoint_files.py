"""Checkpoint files: choose saved states, copy one out of the store, protect one from expiry."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from sqlalchemy import Connection

from jobs.payload.store.manifest import Manifest, blob_key, sha256_file
from jobs.problem import Refusal
from platforms.artifacts.base import BlobStore
from scheduler.store import checkpoints, jobs
from scheduler.store.checkpoints import CheckpointRecord
from scheduler.store.engine import Database


def select(tx: Connection, subject: str | None) -> list[CheckpointRecord]:
    """Return the checkpoints that should be whole: of one job, of one key, or all. Raises UnknownJob and its like."""
    if subject is not None and "/" in subject:
        return [checkpoints.get(tx, subject)]
    if subject is not None:
        jobs.get(tx, subject, removed=True)
    return [record for record in checkpoints.everything(tx, subject) if record.state == "good"]


def pull(artifacts: BlobStore, manifest: Manifest, target: Path) -> None:
    """Copy a checkpoint's components into the new folder ``target``, which appears only when all are whole.

    Raises Refusal, StoreError, OSError.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Refusal(f"{target} is there already and not an empty folder", remedy="Name another one")
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for component in manifest.components:
            place = fresh / component.name
            place.parent.mkdir(parents=True, exist_ok=True)
            artifacts.fetch(blob_key(manifest.job, component.sha256), place)
            if sha256_file(place) != component.sha256:
                raise Refusal(
                    f"{component.name} of {manifest.key} is damaged in the store",
                    remedy=f"Copy the one before it: schedctl checkpoints list {manifest.job}",
                )
        fresh.chmod(0o755)
        fresh.replace(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def choose(tx: Connection, job: str, step: int | None) -> Manifest:
    """Return a job's newest good checkpoint, or the one at ``step``. Raises UnknownJob, Refusal."""
    jobs.get(tx, job, removed=True)
    good = [record.manifest for record in checkpoints.everything(tx, job) if record.state == "good"]
    chosen = next((manifest for manifest in good if step is None or manifest.step == step), None)
    if chosen is not None:
        return chosen
    if not good:
        raise Refusal(f"{job} has no good checkpoint yet", remedy=f"See: schedctl checkpoints list {job}")
    steps = ", ".join(str(manifest.step) for manifest in good[:10])
    raise Refusal(f"{job} has no good checkpoint at step {step}, but at {steps}", remedy="Choose one of them")


def pin(database: Database, key: str, now: int, by: str) -> None:
    """Protect a checkpoint from expiry. Raises NotFound, Stale."""
    with database.write() as tx:
        checkpoints.pin(tx, key, True, now, by)  # noqa: FBT003 - the value itself


def unpin(database: Database, key: str, now: int, by: str) -> None:
    """Let a checkpoint expire like any other. Raises NotFound, Stale."""
    with database.write() as tx:
        checkpoints.pin(tx, key, False, now, by)  # noqa: FBT003 - the value itself
