"""Manifests: the lists of a checkpoint's components. The agent and the daemon use this parser.

A manifest is a JSON document named ``<step>-<attempt>``. It is written after all components, and never replaced. Names
sort by step, then by attempt. An attempt is never repeated, so that a late session cannot write in the name of a newer
one. The content of components is not interpreted here.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import bounds

FORMAT = 1
_NAME = re.compile(r"jobs/([A-Za-z0-9][A-Za-z0-9._-]*)/manifests/([0-9]{12})-([0-9]{6})\.json")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# File names of torch (.metadata, __0_0.distcp), Lightning (epoch=3-step=90.ckpt), Accelerate, Composer and Orbax.
_PART = r"(?!\.\.?(?:/|\Z))[A-Za-z0-9._][A-Za-z0-9._=+@,-]*"
_COMPONENT = re.compile(rf"{_PART}(/{_PART}){{0,7}}")
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
_COMPONENTS_MAX = 10_000
_WHY_MAX = 500


class BadManifest(ValueError):
    """A document is not a manifest, or does not match its key."""

    def __init__(self, key: str, why: str) -> None:
        self.key = key
        self.why = bounds.clean(why, _WHY_MAX)
        super().__init__(f"{key}: {self.why}")


@dataclass(frozen=True, slots=True)
class Component:
    """One file of a checkpoint; ``name`` is its ``/``-separated path in the checkpoint's folder."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A published checkpoint. ``trained_seconds`` is training time since ``parent``, set-up and saving excluded."""

    job: str
    step: int
    attempt: int
    run: str
    lane: int
    parent: str | None
    created_at: int
    trained_seconds: int
    metrics: Mapping[str, float]
    components: tuple[Component, ...]

    @property
    def key(self) -> str:
        """The key of the manifest in the store."""
        return manifest_key(self.job, self.step, self.attempt)

    @property
    def size(self) -> int:
        """The total size of all components in bytes."""
        return sum(component.bytes for component in self.components)

    @property
    def digest(self) -> str:
        """The SHA-256 of the names, sizes and digests of all components; it does not depend on attempt and time."""
        lines = sorted(f"{part.sha256} {part.bytes} {part.name}\n" for part in self.components)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def encode(self) -> bytes:
        """Return the manifest as the bytes of a JSON document."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode()


def manifest_key(job: str, step: int, attempt: int) -> str:
    """Return the store key of a manifest."""
    return f"jobs/{job}/manifests/{step:012d}-{attempt:06d}.json"


def blob_key(job: str, sha256: str) -> str:
    """Return the store key of a component."""
    return f"jobs/{job}/blobs/{sha256}"


def split_key(key: str) -> tuple[str, int, int] | None:
    """Return (job, step, attempt) of a manifest's key; None for any other key."""
    match = _NAME.fullmatch(key)
    return (match[1], int(match[2]), int(match[3])) if match else None


def valid_component_name(name: str) -> bool:
    """Return whether a relative path may be a component's name."""
    return bool(_COMPONENT.fullmatch(name))


def parse_manifest(key: str, data: bytes) -> Manifest:
    """Return the manifest in untrusted bytes. Raises BadManifest with the fault."""
    expected = split_key(key)
    if expected is None:
        raise BadManifest(key, "this is not a manifest's name")
    try:
        document = bounds.read_json(data)
    except ValueError as error:
        raise BadManifest(key, f"not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadManifest(key, f"not a manifest of format {FORMAT}")
    try:
        manifest = _build(document)
    except (KeyError, TypeError, ValueError) as error:
        raise BadManifest(key, f"field missing or of a wrong type: {error}") from None
    if (manifest.job, manifest.step, manifest.attempt) != expected:
        raise BadManifest(key, "job, step or attempt differ from its name")
    return manifest


def _build(document: dict[str, Any]) -> Manifest:
    components = tuple(_component(entry) for entry in document["components"])
    if not components or len(components) > _COMPONENTS_MAX:
        raise ValueError(f"{len(components)} components")
    if len({component.name for component in components}) != len(components):
        raise ValueError("a component is named twice")
    parent, run = document.get("parent"), document["run"]
    if parent is not None and split_key(parent) is None:
        raise ValueError("parent is not a manifest's name")
    if not isinstance(run, str) or not _RUN.fullmatch(run):
        raise ValueError(f"run {bounds.brief(run)} is not a run ID")
    return Manifest(
        job=str(document["job"]),
        step=_count(document, "step", bounds.STEP_MAX),
        attempt=_count(document, "attempt", bounds.ATTEMPT_MAX),
        run=run,
        lane=_count(document, "lane", bounds.LANE_MAX),
        parent=parent,
        created_at=_count(document, "created_at", bounds.INSTANT_MAX),
        trained_seconds=_count(document, "trained_seconds", bounds.SPAN_MAX),
        metrics=bounds.measures(document.get("metrics")),
        components=components,
    )


def _component(entry: Any) -> Component:
    name, digest, size = str(entry["name"]), str(entry["sha256"]), _count(entry, "bytes", bounds.BYTES_MAX)
    if not valid_component_name(name):
        raise ValueError(f"component name {bounds.brief(name)}")
    if not _SHA256.fullmatch(digest):
        raise ValueError(f"digest of {bounds.brief(name)}")
    return Component(name, digest, size)


def _count(document: Mapping[str, Any], name: str, high: int) -> int:
    try:
        return bounds.whole(document[name], 0, high)
    except bounds.Unfit as error:
        raise ValueError(f"{name} {bounds.brief(document[name])} is {error}") from None


def sha256_file(path: Path) -> str:
    """Return the SHA-256 (hex) of a file, read in pieces. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
