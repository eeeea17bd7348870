"""Publish a finished checkpoint folder, its manifest last and nothing replaced; and restore the newest checkpoint."""

import errno
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ..bounds import measures, read_json
from ..log import hidden
from .manifest import BadManifest, Component, Manifest, blob_key, parse_manifest, sha256_file, valid_component_name
from .transport import Transport

_FOLDER = re.compile(r"step-(\d{8,12})")


class BadCheckpoint(Exception):
    """A checkpoint folder violates the training contract; a retry would not help."""


class PublishedManifest(NamedTuple):
    """A manifest in the store, and the SHA-256 of each of its components."""

    manifest: Manifest
    digests: frozenset[str]


class Origin(NamedTuple):
    """The publishing attempt, and the checkpoint from which training continued."""

    job: str
    attempt: int
    run: str
    lane: int
    parent: Manifest | None


def finished_steps(checkpoint_dir: Path) -> dict[int, Path]:
    """Return the folders of finished checkpoints by step, ascending; only finished folders have such a name."""
    matches = ((_FOLDER.fullmatch(path.name), path) for path in checkpoint_dir.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in matches if match and path.is_dir()))


def publish(
    transport: Transport,
    folder: Path,
    step: int,
    origin: Origin,
    trained_seconds: int,
    now: Callable[[], float],
    known_good: frozenset[str],
) -> PublishedManifest:
    """Store the folder as checkpoint ``step``; ``known_good`` are digests that this session has verified or written.

    Idempotent: the store never has a manifest with missing components. Raises OSError if the store or the disk fails,
    BadCheckpoint if the folder violates the contract.
    """
    metrics = _metrics(folder, step)
    components = _components(folder)
    for component in components:
        key = blob_key(origin.job, component.sha256)
        source = folder / component.name
        if component.sha256 in known_good or transport.publish_new(key, source):
            continue
        # The object exists already. It may be damaged, and would stay so for ever, since a repeated step writes to the
        # same key.
        if not transport.verify(key, component.sha256):
            transport.put(key, source)
    manifest = Manifest(
        **{**origin._asdict(), "parent": origin.parent.key if origin.parent else None},
        step=step,
        created_at=int(now()),
        trained_seconds=trained_seconds,
        metrics=metrics,
        components=components,
    )
    if not transport.publish_new(manifest.key, manifest.encode()):
        manifest = _existing(transport, manifest)
    return PublishedManifest(manifest, frozenset(component.sha256 for component in components))


def _existing(transport: Transport, manifest: Manifest) -> Manifest:
    """Return the manifest that an earlier call of the same attempt stored. Raises BadCheckpoint if it differs."""
    try:
        existing = parse_manifest(manifest.key, transport.read(manifest.key))
    except BadManifest as error:
        raise BadCheckpoint(f"{manifest.key} is taken by something else: {error.why}") from None
    if _weights(existing.components) != _weights(manifest.components):
        raise BadCheckpoint(f"{manifest.key} is taken by other content of the same step; it stays")
    return existing


def _weights(components: tuple[Component, ...]) -> set[Component]:
    """Return all components except the metrics, which may differ if a step was trained twice."""
    return {component for component in components if component.name != "meta.json"}


def same_content(folder: Path, manifest: Manifest) -> bool:
    """Return whether a folder has exactly the components of a manifest, apart from the metrics."""
    return _weights(_components(folder)) == _weights(manifest.components)


def discard(folder: Path) -> None:
    """Remove a folder. It is renamed first, so that a partly removed folder is never used as a checkpoint."""
    doomed = folder.with_name(f".doomed-{folder.name}")
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _metrics(folder: Path, step: int) -> dict[str, float]:
    """Return the metrics of a checkpoint; redact secrets in its file ``meta.json``. Raises BadCheckpoint."""
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
        raise BadCheckpoint(f'{folder.name}/meta.json does not have "step": {step}')
    return measures(meta.get("metrics"))


def _components(folder: Path) -> tuple[Component, ...]:
    return tuple(_component(folder, path) for path in sorted(folder.rglob("*")) if not path.is_dir())


def _component(folder: Path, path: Path) -> Component:
    name = path.relative_to(folder).as_posix()
    # Links inside the folder are allowed: Composer makes a link to its latest checkpoint.
    outside = path.is_symlink() and not path.resolve().is_relative_to(folder.resolve())
    if outside or not path.is_file() or not valid_component_name(name):
        raise BadCheckpoint(
            f"{folder.name}/{name} cannot be a component: it must be a plain file in the folder, at most eight folders "
            "deep, named by letters, digits and . _ = + @ , -"
        )
    return Component(name, sha256_file(path), path.stat().st_size)


# Restore the newest checkpoint that verifies.
# These errors concern a single object: a bad sector, or an entry that is not a file.
_DAMAGE = frozenset({errno.EIO, errno.EISDIR, errno.ENOTDIR, errno.ELOOP})


class Restored(NamedTuple):
    """The restored checkpoint, None if no candidate verified, and the damaged candidates."""

    manifest: Manifest | None
    bad: tuple[tuple[str, str], ...]  # (manifest key, why), newest first


def restore(transport: Transport, job: str, candidates: Sequence[str], target: Path) -> Restored:
    """Restore the newest candidate whose bytes all verify into the folder ``target``.

    A damaged candidate is recorded, and the next older candidate is tried. Raises OSError for an error of the local
    disk or the store, which would affect older candidates too.
    """
    bad: list[tuple[str, str]] = []
    partial = target.with_name(f"{target.name}.partial")
    for key in candidates:
        shutil.rmtree(partial, ignore_errors=True)
        try:
            manifest = parse_manifest(key, transport.read(key))
            if manifest.job != job:
                raise BadManifest(key, f"this is not a manifest of {job}")
            _fetch(transport, manifest, partial)
        except BadManifest as error:
            bad.append((key, error.why))
        except FileNotFoundError:
            bad.append((key, "is missing"))
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno not in _DAMAGE:
                raise
            bad.append((key, f"cannot be read: {error}"))
        else:
            partial.rename(target)
            return Restored(manifest, tuple(bad))
    shutil.rmtree(partial, ignore_errors=True)
    return Restored(None, tuple(bad))


def _fetch(transport: Transport, manifest: Manifest, folder: Path) -> None:
    for component in manifest.components:
        path = folder / component.name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            digest = transport.fetch(blob_key(manifest.job, component.sha256), path)
        except FileNotFoundError:
            raise BadManifest(manifest.key, f"component {component.name} is missing") from None
        if (size := path.stat().st_size) != component.bytes:
            raise BadManifest(manifest.key, f"component {component.name} has {size} bytes, not {component.bytes}")
        if digest != component.sha256:
            raise BadManifest(manifest.key, f"component {component.name} does not have the digest it is named by")
