"""Verification: read every byte of a checkpoint and compare it with its manifest, for people and for the daemon.

A checkpoint from which a session could not start may be damaged, and other jobs may be about to start from it. So no
session gets it until the daemon has read it completely: a damaged one is quarantined for all jobs, a whole one is used
again.
"""

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from jobs.payload.store.manifest import BadManifest, Manifest, blob_key, parse_manifest, sha256_file
from platforms.artifacts.base import BlobStore, Missing, StoreError
from scheduler.service.facts.apply import quarantine
from scheduler.service.faults.isolation import gather_apart
from scheduler.service.outside.ports import Ports
from scheduler.store import checkpoints, conditions, events
from scheduler.store.checkpoints import CheckpointRecord
from scheduler.store.conditions import SUSPECTED

VERIFIED = "checkpoint.verified"
_MANIFEST_BYTES = 1 << 20
_AGAIN_SECONDS = 600  # pause after a failed read


@dataclass(frozen=True, slots=True)
class VerificationVerdict:
    """The result for a checkpoint: without ``findings`` all bytes match the manifest."""

    record: CheckpointRecord
    findings: tuple[str, ...]


def verify(artifacts: BlobStore, records: Iterable[CheckpointRecord]) -> Iterator[VerificationVerdict]:
    """Read all components of each checkpoint and compare digests. Raises StoreError if the store does not answer."""
    with tempfile.TemporaryDirectory(prefix="schedctl-verify-") as folder:
        digests: dict[tuple[str, str], str] = {}  # checkpoints of one job share components
        for record in records:
            yield VerificationVerdict(record, tuple(_findings(artifacts, record.manifest, Path(folder), digests)))


class Suspects:
    """Verifies checkpoints that sessions refused. Its state may be lost."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._again_at: dict[str, int] = {}

    def look(self, now: int) -> None:
        """Start or continue to verify suspected checkpoints, and store the results. It never waits for slow work.

        Raises Fenced and other StoreFailures.
        """
        ports = self._ports
        with ports.database.read() as tx:
            suspects = [checkpoints.find(tx, key) for key in conditions.reasons(tx, SUSPECTED)]
        records = [record for record in suspects if record is not None]
        work = {
            record.manifest.key: partial(_damage, ports.artifacts, record)
            for record in records
            if now >= self._again_at.get(record.manifest.key, now)
        }
        for key, damage in gather_apart(ports, "verify", "checkpoint.unverified", work, None, "manifest").items():
            if damage is None:
                self._again_at[key] = now + _AGAIN_SECONDS
                continue
            with ports.write() as tx:
                if damage:
                    quarantine(ports, tx, key, damage, now)
                events.append(tx, VERIFIED, key, now, why=damage or "every byte matches its manifest")
            self._again_at.pop(key, None)


def _damage(artifacts: BlobStore, record: CheckpointRecord) -> str:
    """Return the damage of a checkpoint, "" if there is none. Raises StoreError if the store does not answer."""
    return "; ".join(finding for verdict in verify(artifacts, [record]) for finding in verdict.findings)


def _findings(
    artifacts: BlobStore, manifest: Manifest, folder: Path, digests: dict[tuple[str, str], str]
) -> Iterator[str]:
    try:
        stored = parse_manifest(manifest.key, artifacts.read(manifest.key, _MANIFEST_BYTES))
    except Missing:
        yield "its manifest is missing"
    except BadManifest as error:
        yield f"its manifest is damaged: {error.why}"
    else:
        # Recorded instants, spans and metrics may be clamped to what is possible.
        trained = max(manifest.trained_seconds, stored.trained_seconds)
        expected = replace(manifest, created_at=stored.created_at, trained_seconds=trained, metrics=stored.metrics)
        changed = any(stored.metrics.get(name, value) != value for name, value in manifest.metrics.items())
        if stored != expected or changed:
            yield "its manifest differs from the recorded one"
    for component in manifest.components:
        key = blob_key(manifest.job, component.sha256)
        if (manifest.job, component.sha256) not in digests:
            digests[manifest.job, component.sha256] = _bad_blob(artifacts, key, component.sha256, folder / "component")
        if wrong := digests[manifest.job, component.sha256]:
            yield f"{component.name} {wrong}"


def _bad_blob(artifacts: BlobStore, key: str, sha256: str, place: Path) -> str:
    try:
        artifacts.fetch(key, place)
        actual = sha256_file(place)
    except Missing:
        return "is missing"
    except OSError as error:
        raise StoreError("verify", key, error.strerror or str(error), "Make room in the temporary folder") from None
    finally:
        place.unlink(missing_ok=True)
    return "" if actual == sha256 else f"is damaged: its sha256 is {actual[:12]}..., not {sha256[:12]}..."
