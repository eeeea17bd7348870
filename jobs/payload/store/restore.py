"""Bring back the newest checkpoint that verifies."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .manifest import BadManifest, Manifest, blob_key, parse_manifest
from .transport import Transport

# What a reader of this one object will always meet: a bad sector, or something else in a file's place.
_DAMAGE = frozenset({errno.EIO, errno.EISDIR, errno.ENOTDIR, errno.ELOOP})


class Restored(NamedTuple):
    """What was found: the checkpoint that is in place (None: none verified), and the ones that are damaged."""

    manifest: Manifest | None
    bad: tuple[tuple[str, str], ...]  # (manifest key, why), newest first


def restore(transport: Transport, job: str, candidates: Sequence[str], target: Path) -> Restored:
    """Try the candidates, newest first; put the first whose every byte verifies into the folder ``target``.

    A damaged candidate is recorded and the one before it tried. Raises OSError for trouble that is not the
    candidate's fault, with the local disk or a store that does not answer: an older one would not fare better, and
    what is recorded is never used again.
    """
    bad: list[tuple[str, str]] = []
    partial = target.with_name(f"{target.name}.partial")
    for key in candidates:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
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
