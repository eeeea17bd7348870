"""The manifest: the document that makes a set of component files a checkpoint."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1
_KEY = re.compile(r"jobs/([A-Za-z0-9][A-Za-z0-9._-]*)/manifests/(\d{12})-(\d{6})\.json")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMPONENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*){0,4}")


class BadManifest(Exception):
    """A manifest, or a component it names, is not what it should be."""


class Component(NamedTuple):
    """One file of a checkpoint; ``name`` is its ``/``-separated path in the checkpoint's folder."""

    name: str
    sha256: str
    bytes: int


class Manifest(NamedTuple):
    """A checkpoint. ``trained_seconds`` counts scheduled training time since ``parent`` only."""

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
        """The store key: names sort by step, then by the attempt that made it."""
        return f"jobs/{self.job}/manifests/{self.step:012d}-{self.attempt:06d}.json"

    def encode(self) -> bytes:
        """Return the document's bytes."""
        document = {
            "format": FORMAT,
            **self._asdict(),
            "components": [part._asdict() for part in self.components],
        }
        return json.dumps(document, indent=1).encode()


def blob_key(job: str, sha256: str) -> str:
    """Return the store key of a component."""
    return f"jobs/{job}/blobs/{sha256}"


def valid_component_name(name: str) -> bool:
    """Tell whether a relative path may be a component's name."""
    return bool(_COMPONENT.fullmatch(name)) and ".." not in name.split("/")


def decode(key: str, job: str, data: bytes) -> Manifest:
    """Read a manifest from bytes that may be damaged; raises BadManifest."""
    named = _KEY.fullmatch(key)
    if named is None or named[1] != job:
        raise BadManifest(f"not the name of a manifest of {job}")
    try:
        document = json.loads(data)
        if document["format"] != FORMAT:
            raise BadManifest(f"format {document['format']!r} is unknown")
        manifest = _manifest(document)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadManifest(f"not a manifest: {type(error).__name__}: {error}") from None
    if manifest.key != key:
        raise BadManifest("job, step or attempt differ from its name")
    return manifest


def finite_metrics(values: Any) -> dict[str, float]:
    """Keep what can be compared and written as JSON: named, finite numbers."""
    if not isinstance(values, dict):
        return {}
    return {
        str(name): float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _manifest(document: dict[str, Any]) -> Manifest:
    components = tuple(_component(entry) for entry in document["components"])
    names = {component.name for component in components}
    if not components or len(names) != len(components):
        raise ValueError("components are missing or named twice")
    parent = document["parent"]
    if parent is not None and not _KEY.fullmatch(parent):
        raise ValueError(f"parent {parent!r}")
    return Manifest(
        job=str(document["job"]),
        step=_count(document["step"]),
        attempt=_count(document["attempt"]),
        run=str(document["run"]),
        lane=_count(document["lane"]),
        parent=parent,
        created_at=_count(document["created_at"]),
        trained_seconds=_count(document["trained_seconds"]),
        metrics=finite_metrics(document["metrics"]),
        components=components,
    )


def _component(entry: dict[str, Any]) -> Component:
    component = Component(str(entry["name"]), str(entry["sha256"]), _count(entry["bytes"]))
    if not valid_component_name(component.name) or not _SHA256.fullmatch(component.sha256):
        raise ValueError(f"component {component.name!r}")
    return component


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value
