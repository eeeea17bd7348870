"""Versions of models, made at once: a checkpoint in the store with weights that a test chooses, accepted, in force."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from jobs.payload.store.manifest import Component, Manifest, blob_key
from jobs.spec import JobSpec
from scheduler.store import checkpoints, jobs, versions
from scheduler.store.versions import Promotion, Version
from tests.lab.releases import WEIGHTS, weights

if TYPE_CHECKING:
    from platforms.artifacts.base import BlobStore
    from scheduler.store.engine import Database


def make_version(
    database: Database, artifacts: BlobStore, now: int, data: bytes, model: str = "ufm", *, in_force: bool = True
) -> Version:
    """Return a new accepted version with these weights. Its checkpoint also has an optimiser, which nobody serves."""
    parts = []
    for name, content in ((WEIGHTS, weights(data)), ("adapter_config.json", b"{}"), ("optimizer.pt", b"\x80\x02")):
        digest = hashlib.sha256(content).hexdigest()
        artifacts.create(blob_key(model, digest), content)
        parts.append(Component(name, digest, len(content)))
    with database.write() as tx:
        step = 1 + len(versions.everything(tx))
        if jobs.find(tx, model) is None:
            jobs.add(tx, JobSpec(model, "manager", ("train",), 1_000, 100.0), now)
        manifest = Manifest(model, step, 1, f"uff-{model}-0001", 0, None, now, 1, {}, tuple(parts))
        checkpoints.record(tx, manifest, now)
        wanted = Version(model, 0, manifest.key, f"{step:064x}", step, "candidate", "", now)
        made = versions.move(tx, versions.add(tx, wanted, now, "tester"), "overrule_accept", "good", now)
    if in_force:
        put_in_force(database, made, now)
    return made


def put_in_force(database: Database, version: Version, now: int) -> None:
    """Promote a version, whatever it is."""
    with database.write() as tx:
        before = versions.in_force(tx, version.model)
        was = before.number if before else None
        versions.note_promotion(tx, Promotion(version.model, "promote", version.number, was, "tester", "", now))
