"""Manifests: what a checkpoint consists of, and how one is checked.

A manifest is the JSON document a payload writes last, create-only, named ``<step>-<attempt>``. Names sort by step,
then by the attempt that made it; the attempt is a fencing number, because attempts of a job never repeat and never
run twice. Nothing here reads a component's content as anything but bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = 1
_NAME = re.compile(r"jobs/([A-Za-z0-9][A-Za-z0-9._-]*)/manifests/([0-9]{12})-([0-9]{6})\.json")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMPONENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*){0,4}")
_COMPONENTS_MAX = 10_000
_COUNT_MAX = 2**63  # what a database column holds


class BadManifest(ValueError):
    """The document is not a manifest, or not the one its name promises."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key = key
        self.why = why


@dataclass(frozen=True, slots=True)
class Component:
    """One file of a checkpoint, stored under its digest."""

    name: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A published checkpoint. ``trained_seconds`` is training time since ``parent``, set-up and saving excluded."""

    key: str
    job: str
    step: int
    attempt: int
    run: str
    lane: int
    parent: str | None
    created_at: int
    trained_seconds: int
    components: tuple[Component, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Size of all components."""
        return sum(component.bytes for component in self.components)


def manifest_key(job: str, step: int, attempt: int) -> str:
    """Return the store key of a manifest."""
    return f"jobs/{job}/manifests/{step:012d}-{attempt:06d}.json"


def blob_key(job: str, sha256: str) -> str:
    """Return the store key of a component."""
    return f"jobs/{job}/blobs/{sha256}"


def split_key(key: str) -> tuple[str, int, int] | None:
    """Return (job, step, attempt) of a manifest's key, or None when it is not one."""
    match = _NAME.fullmatch(key)
    return (match[1], int(match[2]), int(match[3])) if match else None


def parse_manifest(key: str, data: bytes) -> Manifest:
    """Read a manifest from hostile bytes; raises BadManifest with what is wrong."""
    named = split_key(key)
    if named is None:
        raise BadManifest(key, "this is not a manifest's name")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadManifest(key, f"not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadManifest(key, f"not a manifest of format {FORMAT}")
    try:
        manifest = _build(key, document)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadManifest(key, f"field missing or of a wrong type: {error}") from None
    if (manifest.job, manifest.step, manifest.attempt) != named:
        raise BadManifest(key, "job, step or attempt differ from its name")
    return manifest


def _build(key: str, document: dict[str, Any]) -> Manifest:
    components = tuple(_component(entry) for entry in document["components"])
    if not components or len(components) > _COMPONENTS_MAX:
        raise ValueError(f"{len(components)} components")
    if len({component.name for component in components}) != len(components):
        raise ValueError("a component is named twice")
    metrics = {
        str(name): float(value)
        for name, value in dict(document.get("metrics") or {}).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    parent = document.get("parent")
    if parent is not None and split_key(parent) is None:
        raise ValueError("parent is not a manifest's name")
    return Manifest(
        key=key,
        job=str(document["job"]),
        step=_count(document["step"]),
        attempt=_count(document["attempt"]),
        run=_text(document["run"]),
        lane=_count(document["lane"]),
        parent=parent,
        created_at=_count(document["created_at"]),
        trained_seconds=_count(document["trained_seconds"]),
        components=components,
        metrics=metrics,
    )


def _component(entry: Any) -> Component:
    name, digest, size = str(entry["name"]), str(entry["sha256"]), _count(entry["bytes"])
    if not _COMPONENT.fullmatch(name) or ".." in name.split("/"):
        raise ValueError(f"component name {name!r}")
    if not _SHA256.fullmatch(digest):
        raise ValueError(f"digest of {name}")
    return Component(name, digest, size)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _COUNT_MAX:
        raise ValueError(f"{value!r} is not a count")
    return value


def sha256_file(path: Path) -> str:
    """Return the hex digest of a file, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
