"""Relay: what a session that cannot reach the artifact store is given, and what of its leavings is taken home.

Shared by platforms whose sessions start from attached files and leave files behind. What comes back is hostile
until shown otherwise; it counts only under keys that the session had a right to write, with content that fits them.
"""

from __future__ import annotations

import re
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.checkpoint import BadManifest, blob_key, parse_manifest, sha256_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from platforms.artifacts.base import BlobStore

_MANIFEST_BYTES_MAX = 1 << 20
_BLOB = re.compile(r"jobs/([A-Za-z0-9][A-Za-z0-9._-]*)/blobs/([0-9a-f]{64})")
_MANIFEST = re.compile(r"jobs/([A-Za-z0-9][A-Za-z0-9._-]*)/manifests/\d{12}-\d{6}\.json")
_REPORT = re.compile(r"runs/([A-Za-z0-9._-]+)/lane-\d{1,3}/(heartbeat|result)\.json")


@dataclass(frozen=True)
class Intake:
    """The right of the launch ``key``, whose lanes train ``jobs``, to leave objects for the artifact store."""

    key: str
    jobs: frozenset[str]

    def rank(self, key: str) -> int | None:
        """Return in which turn an object is taken: blobs 0, manifests 1, reports 2; None for what is not its to write.

        In this order whoever sees a later object can rely on the earlier ones.
        """
        if match := _BLOB.fullmatch(key):
            return 0 if match[1] in self.jobs else None
        if match := _MANIFEST.fullmatch(key):
            return 1 if match[1] in self.jobs else None
        if match := _REPORT.fullmatch(key):
            return 2 if match[1] == self.key else None
        return None

    def in_turn(self, keys: Iterable[str]) -> list[str]:
        """Return those keys that are its to write, in the order in which they are to be taken."""
        ranked = [(rank, key) for key in keys if (rank := self.rank(key)) is not None]
        return [key for _, key in sorted(ranked)]

    def is_sound(self, key: str, file: Path) -> bool:
        """Tell whether a file's content is what its key promises."""
        match self.rank(key):
            case 0:
                return sha256_file(file) == key.rpartition("/")[2]
            case 1:
                try:
                    parse_manifest(key, file.read_bytes())
                except BadManifest:
                    return False
        return True


def checkpoint_keys(store: BlobStore, candidates: Sequence[str]) -> list[str]:
    """Return the objects of the newest candidate that can be read whole: its manifest and its components.

    Raises StoreError when the store gives no answer.
    """
    for key in candidates:
        try:
            manifest = parse_manifest(key, store.read(key, _MANIFEST_BYTES_MAX))
        except ValueError:
            continue
        blobs = {blob_key(manifest.job, component.sha256) for component in manifest.components}
        if all(store.size(blob) is not None for blob in blobs):
            return [key, *sorted(blobs)]
    return []


def given_launch(launch: Mapping[str, object], attached: set[str]) -> dict[str, object]:
    """Return the launch document with only those restore candidates that the session can reach."""
    lanes = launch.get("lanes")
    if not isinstance(lanes, list):
        return dict(launch)
    return {
        **launch,
        "lanes": [{**lane, "restore": [key for key in lane.get("restore", ()) if key in attached]} for lane in lanes],
    }


def pack_objects(store: BlobStore, keys: Iterable[str], archive: Path) -> None:
    """Write objects of a store into a new tar, the same bytes for the same objects. Raises StoreError, OSError."""
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
