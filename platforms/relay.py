"""Pack objects for a session that cannot reach the artifact store, and check the objects that it wrote.

Platforms whose sessions start from attached files and leave files behind share this module. Returned files are
untrusted: an object is accepted only if the session had the right to write its key, and if its content matches the key.
"""

import errno
import re
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.payload.bounded_file import ODD, read_below
from jobs.payload.bounds import read_json
from jobs.payload.store.manifest import BadManifest, blob_key, parse_manifest, sha256_file, split_key
from platforms.artifacts.base import BlobStore, StoreError, StoreUnreachable

BLOBS, MANIFESTS, REPORTS = range(3)  # the order in which objects are imported
_DOCUMENT_BYTES_MAX = 1 << 20
_BLOB = re.compile(r"jobs/([A-Za-z0-9][A-Za-z0-9._-]*)/blobs/([0-9a-f]{64})")
_REPORT = re.compile(r"runs/([A-Za-z0-9._-]+)/lane-\d{1,3}/(heartbeat|result)\.json")


@dataclass(frozen=True)
class Intake:
    """The objects that the launch ``key``, whose lanes train ``jobs``, may write to the artifact store."""

    key: str
    jobs: frozenset[str]

    def rank(self, key: str) -> int | None:
        """Return when to import an object: blobs 0, manifests 1, reports 2; None if the session may not write it.

        In this order, each object is imported after the objects that it refers to.
        """
        if match := _BLOB.fullmatch(key):
            return BLOBS if match[1] in self.jobs else None
        if parts := split_key(key):
            return MANIFESTS if parts[0] in self.jobs else None
        if match := _REPORT.fullmatch(key):
            return REPORTS if match[1] == self.key else None
        return None

    def in_import_order(self, keys: Iterable[str]) -> list[str]:
        """Return the keys that the session may write, in the order in which to import them."""
        ranked = [(rank, key) for key in keys if (rank := self.rank(key)) is not None]
        return [key for _, key in sorted(ranked)]

    def matches_key(self, key: str, file: Path) -> bool:
        """Return whether a file's content matches its key."""
        match self.rank(key):
            case 0:  # a blob
                return sha256_file(file) == key.rpartition("/")[2]
            case 1:  # a manifest
                try:
                    parse_manifest(key, _read(file))
                except (BadManifest, _UnusableDocument):
                    return False
            case 2:  # a report
                try:
                    return isinstance(read_json(_read(file)), dict)
                except ValueError:
                    return False
        return True


class _UnusableDocument(ValueError):
    """The document is too large, or is not a plain file."""


def _read(file: Path) -> bytes:
    try:
        return read_below(file.parent, file.name, _DOCUMENT_BYTES_MAX)
    except OSError as error:
        if error.errno in ODD | {errno.EFBIG}:
            raise _UnusableDocument(str(error)) from error
        raise


def has_components(key: str, file: Path, store: BlobStore) -> bool:
    """Return whether all components of a valid manifest are in the store. Raises StoreError if it does not answer."""
    manifest = parse_manifest(key, _read(file))
    return all(store.size(blob_key(manifest.job, part.sha256)) is not None for part in manifest.components)


def checkpoint_keys(store: BlobStore, lane: Mapping[str, Any]) -> list[str]:
    """Return the keys of the checkpoint that a lane starts from: its manifest and its components; [] if none exists.

    That is the newest complete checkpoint that the lane may resume from, or its parent's if the lane has no restore
    candidates. Raises StoreUnreachable if the store does not answer.
    """
    for key in [str(key) for key in lane.get("restore") or [lane.get("parent") or ""] if key]:
        try:
            manifest = parse_manifest(key, store.read(key, _DOCUMENT_BYTES_MAX))
        except StoreUnreachable:
            raise
        except (ValueError, StoreError):
            continue
        blobs = {blob_key(manifest.job, component.sha256) for component in manifest.components}
        if all(store.size(blob) is not None for blob in blobs):
            return [key, *sorted(blobs)]
    return []


def folder_keys(store: BlobStore, lanes: Iterable[Mapping[str, object]]) -> dict[str, list[str]]:
    """Return the keys in all folders that lanes read (data, code and trees), by prefix. Raises StoreError."""
    prefixes: set[str] = set()
    for lane in lanes:
        trees = lane.get("trees")
        prefixes |= {str(lane.get(name) or "") for name in ("data", "code")}
        prefixes |= {str(prefix) for prefix in trees.values()} if isinstance(trees, dict) else set()
    prefixes -= {""}
    return {prefix: list(store.keys(f"{prefix}/")) for prefix in sorted(prefixes)}


def launch_with_attached(launch: Mapping[str, object], attached: set[str]) -> dict[str, object]:
    """Return the launch document, with each lane's restore candidates only up to the first that is in ``attached``.

    The session reports the candidates before that one like damaged checkpoints, because they are missing. If none is
    attached, all candidates stay, and the session fails instead of starting from scratch.
    """
    lanes = launch.get("lanes")
    if not isinstance(lanes, list):
        return dict(launch)

    def until_attached(candidates: Sequence[str]) -> list[str]:
        position = next((place for place, key in enumerate(candidates) if key in attached), len(candidates))
        return list(candidates[: position + 1])

    return {**launch, "lanes": [{**lane, "restore": until_attached(lane.get("restore", ()))} for lane in lanes]}


def pack_objects(store: BlobStore, keys: Iterable[str], archive: Path) -> None:
    """Write objects of a store into a new tar file, reproducible byte for byte. Raises StoreError, OSError."""
    with (
        tempfile.TemporaryDirectory(prefix="uff-objects-", dir=archive.parent) as folder,
        tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as opened,
    ):
        for key in sorted(keys):
            copy = Path(folder) / "object"
            store.fetch(key, copy)
            member = tarfile.TarInfo(key)
            member.size, member.mode = copy.stat().st_size, 0o644
            with copy.open("rb") as stream:
                opened.addfile(member, stream)
            copy.unlink()
