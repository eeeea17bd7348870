"""Mounted inputs: what a platform holds itself and puts into the session, found by the list of its files.

Where it is put has changed over the years, so it is looked for. No digest of it is published: it is believed by its
version, which never changes, and by the size of each file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from .listing import BadListing, Entry, parse_listing
from .transport import Transport
from .tree import LIMITS, fetch_listing, making_of

KIND = "kaggle"


class Mounted(NamedTuple):
    """A version of something at Kaggle, as ``kaggle-model:owner/...``, and its files, whose digests are not known."""

    source: str
    entries: tuple[Entry, ...]


class MountPlace(NamedTuple):
    """Where it is."""

    source: str
    folder: Path


def parse_mounted(data: bytes) -> Mounted:
    """Read the listing of what a platform holds. Raises BadListing."""
    entries, document = parse_listing(data, LIMITS)
    source = document.get("source")
    if not isinstance(source, str) or not entries:
        raise BadListing("its listing names nothing that Kaggle has")
    return Mounted(source, entries)


def find_mounted(transport: Transport, prefix: str, target: Path, roots: Sequence[Path]) -> MountPlace:
    """Return where below ``roots`` the files are that the listing at ``prefix`` names.

    Raises BadListing, also for files of other sizes; FileNotFoundError for what is not attached; OSError.
    """
    with making_of(target) as making:
        mounted = parse_mounted(fetch_listing(transport, prefix, making))
    candidates = {
        place.resolve(): _likeness(place, mounted.source) for root in roots for place in _named(root, mounted)
    }
    if not candidates:
        raise FileNotFoundError(f"{mounted.source} is not attached to this session")
    whole = {place: likeness for place, likeness in candidates.items() if not _differs(place, mounted.entries)}
    if not whole:
        place = max(candidates, key=lambda place: candidates[place])
        raise BadListing(f"{place / _differs(place, mounted.entries)} does not have the size that was listed")
    best = [place for place, likeness in whole.items() if likeness == max(whole.values())]
    if len(best) > 1:
        listing = ", ".join(map(str, sorted(best)))
        raise BadListing(f"{mounted.source} may be any of {listing}")
    return MountPlace(mounted.source, best[0])


def _named(root: Path, mounted: Mounted) -> Iterator[Path]:
    """Yield the folders that have the first file of a listing under its name."""
    parts = mounted.entries[0].path.split("/")
    for place, _, names in os.walk(root):
        if parts[-1] in names:
            folder = root / place
            inside = folder.relative_to(root).parts
            if inside[len(inside) - len(parts) + 1 :] == tuple(parts[:-1]):
                yield root.joinpath(*inside[: len(inside) - len(parts) + 1])


def _differs(folder: Path, entries: tuple[Entry, ...]) -> str:
    """Return the first file that is missing or of another size; empty: none is."""
    for entry in entries:
        try:
            if (folder / entry.path).stat().st_size != entry.bytes:
                return entry.path
        except OSError:
            return entry.path
    return ""


def _likeness(place: Path, source: str) -> int:
    """Return how much of a source's name stands in a path: models of one family have files of the same sizes."""
    above = {part.lower() for part in place.parts}
    return sum(part.lower() in above for part in source.partition(":")[2].split("/"))
