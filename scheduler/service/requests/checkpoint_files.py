"""Checkpoint files: check every byte of a saved state, copy one out of the store, protect one from expiry."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.payload.store.manifest import BadManifest, blob_key, parse_manifest, sha256_file
from platforms.artifacts.base import Missing, StoreError
from scheduler.store import checkpoints, jobs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Connection

    from jobs.payload.store.manifest import Manifest
    from platforms.artifacts.base import BlobStore
    from scheduler.store.checkpoints import CheckpointRecord
    from scheduler.store.engine import Database

_MANIFEST_BYTES = 1 << 20


class PullRefused(Exception):
    """A checkpoint cannot be copied; the message says why and what to do next."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a checkpoint was found to be: no ``findings`` means that every byte is as its manifest says."""

    record: CheckpointRecord
    findings: tuple[str, ...]


def select(tx: Connection, subject: str | None) -> list[CheckpointRecord]:
    """Return the checkpoints that should be whole: of one job, of one key, or all. Raises UnknownJob and its like."""
    if subject is not None and "/" in subject:
        return [checkpoints.get(tx, subject)]
    if subject is not None:
        jobs.get(tx, subject, removed=True)
    return [record for record in checkpoints.everything(tx, subject) if record.state == "good"]


def verify(artifacts: BlobStore, records: Iterable[CheckpointRecord]) -> Iterator[Verdict]:
    """Read all components of each checkpoint and compare their digests. Raises StoreError when nothing can be told."""
    with tempfile.TemporaryDirectory(prefix="schedctl-verify-") as folder:
        known: dict[tuple[str, str], str] = {}  # checkpoints of one job share components
        for record in records:
            yield Verdict(record, tuple(_findings(artifacts, record.manifest, Path(folder), known)))


def pull(artifacts: BlobStore, manifest: Manifest, target: Path) -> None:
    """Copy a checkpoint's components into the new folder ``target``, which appears only when all are whole.

    Raises PullRefused, StoreError, OSError.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise PullRefused(f"{target} is there already and not an empty folder. Name another one")
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for component in manifest.components:
            place = fresh / component.name
            place.parent.mkdir(parents=True, exist_ok=True)
            artifacts.fetch(blob_key(manifest.job, component.sha256), place)
            if sha256_file(place) != component.sha256:
                raise PullRefused(
                    f"{component.name} of {manifest.key} is damaged in the store. Copy the one before it: "
                    f"schedctl checkpoints list {manifest.job}"
                )
        fresh.chmod(0o755)
        fresh.replace(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def choose(tx: Connection, job: str, step: int | None) -> Manifest:
    """Return a job's newest good checkpoint, or the one at ``step``. Raises UnknownJob, PullRefused."""
    jobs.get(tx, job, removed=True)
    good = [record.manifest for record in checkpoints.everything(tx, job) if record.state == "good"]
    found = next((manifest for manifest in good if step is None or manifest.step == step), None)
    if found is not None:
        return found
    if not good:
        raise PullRefused(f"{job} has no good checkpoint yet. See: schedctl checkpoints list {job}")
    steps = ", ".join(str(manifest.step) for manifest in good[:10])
    raise PullRefused(f"{job} has no good checkpoint at step {step}, but at {steps}. Choose one of them")


def pin(database: Database, key: str, now: int, by: str) -> None:
    """Protect a checkpoint from expiry. Raises UnknownCheckpoint, Stale."""
    with database.write() as tx:
        checkpoints.pin(tx, key, True, now, by)  # noqa: FBT003 - the value itself


def unpin(database: Database, key: str, now: int, by: str) -> None:
    """Let a checkpoint expire like any other. Raises UnknownCheckpoint, Stale."""
    with database.write() as tx:
        checkpoints.pin(tx, key, False, now, by)  # noqa: FBT003 - the value itself


def _findings(
    artifacts: BlobStore, manifest: Manifest, folder: Path, known: dict[tuple[str, str], str]
) -> Iterator[str]:
    try:
        stored = parse_manifest(manifest.key, artifacts.read(manifest.key, _MANIFEST_BYTES))
    except Missing:
        yield "its manifest is missing"
    except BadManifest as error:
        yield f"its manifest is damaged: {error.why}"
    else:
        # Instants and spans were recorded as far as they could be true, metrics as far as they can be stored.
        trained = max(manifest.trained_seconds, stored.trained_seconds)
        told = replace(manifest, created_at=stored.created_at, trained_seconds=trained, metrics=stored.metrics)
        changed = any(stored.metrics.get(name, value) != value for name, value in manifest.metrics.items())
        if stored != told or changed:
            yield "its manifest is another one than was recorded"
    for component in manifest.components:
        key = blob_key(manifest.job, component.sha256)
        if (manifest.job, component.sha256) not in known:
            known[manifest.job, component.sha256] = _wrong(artifacts, key, component.sha256, folder / "component")
        if wrong := known[manifest.job, component.sha256]:
            yield f"{component.name} {wrong}"


def _wrong(artifacts: BlobStore, key: str, sha256: str, place: Path) -> str:
    try:
        artifacts.fetch(key, place)
        found = sha256_file(place)
    except Missing:
        return "is missing"
    except OSError as error:
        raise StoreError("verify", key, error.strerror or str(error), "Make room in the temporary folder") from None
    finally:
        place.unlink(missing_ok=True)
    return "" if found == sha256 else f"is damaged: its sha256 is {found[:12]}..., not {sha256[:12]}..."
