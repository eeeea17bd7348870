"""What leaves the house of a version: weights that can be used, and the answer that its evaluation wrote down."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.payload.store.manifest import Component, Manifest, blob_key
from jobs.spec import JobSpec
from platforms.artifacts.directory import DirectoryStore
from platforms.targets.base import BadRelease
from scheduler.service.deploy.deployer import probe_of_version, release_of
from scheduler.store import checkpoints, evaluations, jobs
from scheduler.store.engine import Database
from scheduler.store.versions import Version
from tests.lab.releases import WEIGHTS, weights
from tests.lab.versions import make_version

NOW = 1_795_000_000
SAID = json.dumps({"prompt": "p", "tokens": ["def"], "logprobs": [-0.1]}).encode()


def evaluate(database: Database, store: DirectoryStore, version: Version, job: str, content: bytes) -> None:
    """Let an evaluation of a version end that left ``probe.json`` beside its scores."""
    digest = hashlib.sha256(content).hexdigest()
    store.create(blob_key(job, digest), content)
    left = Manifest(
        job, 1, 1, f"uff-{job}-0001", 0, None, NOW, 1, {}, (Component("output/probe.json", digest, len(content)),)
    )
    with database.write() as tx:
        jobs.add(tx, JobSpec(job, "evaluate", ("score",), 1, 1.0), NOW)
        checkpoints.record(tx, left, NOW)
        jobs.note_progress(tx, job, 1, left.key)
        evaluations.begin(tx, version, job, "s" * 64, "d" * 64, NOW)
        evaluations.end(tx, evaluations.of_version(tx, version)[-1], "scored", NOW)


def test_what_an_evaluation_recorded_goes_along_for_the_health_check(database: Database, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "artifacts")
    version = make_version(database, store, NOW, b"weights")
    with database.read() as tx:
        manifest = checkpoints.get(tx, version.checkpoint).manifest
        assert probe_of_version(tx, version) is None
    evaluate(database, store, version, "ufm-eval-1", SAID)
    evaluate(database, store, version, "ufm-eval-1-2", b" " * 100_000)  # larger than any probe
    with database.read() as tx:
        probe = probe_of_version(tx, version)
    release = release_of(store, version, manifest, tmp_path / "out", probe)
    assert set(release.files) == {WEIGHTS, "adapter_config.json", "probe.json"}
    assert (release.folder / "probe.json").read_bytes() == SAID
    bare = release_of(store, version, manifest, tmp_path / "bare")
    assert "probe.json" not in bare.files


def test_the_adapter_that_preferences_compare_with_stays(database: Database, tmp_path: Path) -> None:
    """Whoever loads what leaves would find two adapters, and have to know that one is of training alone."""
    store = DirectoryStore(tmp_path / "artifacts")
    version = make_version(database, store, NOW, b"weights")
    with database.read() as tx:
        found = checkpoints.get(tx, version.checkpoint).manifest
    given = {part.name: part for part in found.components}
    beside = {f"ref/{name}": given[name] for name in (WEIGHTS, "adapter_config.json")}
    more = tuple(Component(name, part.sha256, part.bytes) for name, part in beside.items())
    release = release_of(store, version, replace(found, components=(*found.components, *more)), tmp_path / "out")
    assert set(release.files) == {WEIGHTS, "adapter_config.json"}


def test_weights_that_are_no_numbers_are_never_sent_and_the_tensor_is_named(database: Database, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "artifacts")
    version = make_version(database, store, NOW, b"weights")
    content = weights(b"\0\0\xc0\x7f", "F32")
    digest = hashlib.sha256(content).hexdigest()
    store.create(blob_key("ufm", digest), content)
    broken = Manifest(
        "ufm", 9, 1, "uff-ufm-0001", 0, None, NOW, 1, {}, (Component("a.safetensors", digest, len(content)),)
    )
    with pytest.raises(BadRelease, match=r"a\.safetensors: w has a number that is not finite"):
        release_of(store, version, broken, tmp_path / "out")
