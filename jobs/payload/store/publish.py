"""Publish a finished checkpoint folder: components first, manifest last, each create-only."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..bounds import measures, read_json
from ..log import hidden
from .manifest import (
    BadManifest,
    Component,
    Manifest,
    blob_key,
    parse_manifest,
    sha256_file,
    valid_component_name,
)
from .transport import Transport

_FOLDER = re.compile(r"step-(\d{8,12})")


class BadCheckpoint(Exception):
    """A checkpoint folder breaks the training contract; publishing it again would not help."""


class Published(NamedTuple):
    """A manifest that is in the store."""

    manifest: Manifest
    digests: frozenset[str]


class Origin(NamedTuple):
    """Who publishes, and from where the training went on."""

    job: str
    attempt: int
    run: str
    lane: int
    parent: Manifest | None


def finished_steps(checkpoint_dir: Path) -> dict[int, Path]:
    """Return the complete step folders by step, in ascending order; a name is only given to a complete folder."""
    found = {
        int(match[1]): path
        for path in checkpoint_dir.iterdir()
        if (match := _FOLDER.fullmatch(path.name)) and path.is_dir()
    }
    return dict(sorted(found.items()))


def publish(
    transport: Transport,
    folder: Path,
    step: int,
    origin: Origin,
    trained_seconds: int,
    now: Callable[[], float],
    known_good: frozenset[str],
) -> Published:
    """Store the folder as checkpoint ``step``; ``known_good`` are digests this session has itself verified or written.

    Safe to repeat after any failure: the store never holds a manifest whose components are not all there. Raises
    OSError when the store or the disk fails, BadCheckpoint when the folder is not what the contract says.
    """
    metrics = _metrics(folder, step)
    components = _components(folder)
    for component in components:
        key = blob_key(origin.job, component.sha256)
        source = folder / component.name
        if component.sha256 in known_good or transport.publish_new(key, source):
            continue
        # The name is taken. A retrained step repeats its bytes, so the object may be the very one that was found
        # damaged: content addressing would keep the damage for ever.
        if not transport.verify(key, component.sha256):
            transport.put(key, source)
    manifest = Manifest(
        job=origin.job,
        step=step,
        attempt=origin.attempt,
        run=origin.run,
        lane=origin.lane,
        parent=origin.parent.key if origin.parent else None,
        created_at=int(now()),
        trained_seconds=trained_seconds,
        metrics=metrics,
        components=components,
    )
    if not transport.publish_new(manifest.key, manifest.encode()):
        manifest = _standing(transport, manifest)
    return Published(manifest, frozenset(component.sha256 for component in components))


def _standing(transport: Transport, manifest: Manifest) -> Manifest:
    """Return the manifest that already has this name, from an earlier start of the same attempt."""
    try:
        standing = parse_manifest(manifest.key, transport.read(manifest.key))
    except BadManifest as error:
        raise BadCheckpoint(f"{manifest.key} is taken by something else: {error.why}") from None
    if _weights(standing.components) != _weights(manifest.components):
        raise BadCheckpoint(f"{manifest.key} is taken by other content of the same step; it stays")
    return standing


def _weights(components: tuple[Component, ...]) -> set[Component]:
    """Return all but the metrics, which may differ in a step that was trained twice."""
    return {component for component in components if component.name != "meta.json"}


def same_content(folder: Path, manifest: Manifest) -> bool:
    """Tell whether a folder holds exactly the components of a manifest, its metrics aside."""
    return _weights(_components(folder)) == _weights(manifest.components)


def discard(folder: Path) -> None:
    """Remove a folder; first its name, so that no half of it can be taken for a checkpoint."""
    doomed = folder.with_name(f".doomed-{folder.name}")
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _metrics(folder: Path, step: int) -> dict[str, float]:
    """Return the metrics of a checkpoint, and see to it that no name among them tells a secret, here or there."""
    file = folder / "meta.json"
    try:
        data = file.read_bytes()
        cleaned = hidden(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        if cleaned != data:
            file.write_bytes(cleaned)
        meta = read_json(cleaned)
    except (FileNotFoundError, ValueError) as error:
        raise BadCheckpoint(f"{folder.name}/meta.json: {error}") from None
    if not isinstance(meta, dict) or meta.get("step") != step:
        raise BadCheckpoint(f"{folder.name}/meta.json does not say step {step}")
    return measures(meta.get("metrics"))


def _components(folder: Path) -> tuple[Component, ...]:
    return tuple(_component(folder, path) for path in sorted(folder.rglob("*")) if not path.is_dir())


def _component(folder: Path, path: Path) -> Component:
    name = path.relative_to(folder).as_posix()
    outside = path.is_symlink() and not path.resolve().is_relative_to(folder.resolve())  # Composer links its latest
    if outside or not path.is_file() or not valid_component_name(name):
        raise BadCheckpoint(
            f"{folder.name}/{name} cannot be a component: it must be a plain file in the folder, at most eight folders "
            "deep, named by letters, digits and . _ = + @ , -"
        )
    return Component(name, sha256_file(path), path.stat().st_size)
