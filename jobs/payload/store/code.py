"""The code of a job in the store: a listing that names every file and its digest, and their bytes one after another."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path
from typing import BinaryIO

from .listing import LISTING, BadListing, Entry, Limits, parse_listing

LIMITS = Limits(files=20_000, bytes=100 << 20, listing_bytes=8 << 20)
CONTENT = "content.gz"
_MODES = {"file": 0o644, "program": 0o755}
_PIECE_BYTES = 1 << 20


def code_prefix(digest: str) -> str:
    """Return the folder of the store in which listing and content are."""
    return f"code/{digest}"


def unpack(folder: Path, digest: str, target: Path) -> tuple[Entry, ...]:
    """Put the files of ``digest``, whose objects are in ``folder``, into the empty folder ``target``.

    Every byte is checked. Raises BadListing, and OSError when the disk fails.
    """
    with (folder / LISTING).open("rb") as stream:
        data = stream.read(LIMITS.listing_bytes + 1)
    if hashlib.sha256(data).hexdigest() != digest:
        raise BadListing("its listing does not have the digest it is named by")
    entries, _ = parse_listing(data, LIMITS)
    try:
        with gzip.open(folder / CONTENT) as content:
            for entry in entries:
                if entry.kind != "link":
                    _write(content, entry, target / entry.path)
            if content.read(1):
                raise BadListing("its content is longer than its listing says")
    except (zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise BadListing(f"its content is damaged: {error}") from None
    make_links(entries, target)
    return entries


def make_links(entries: tuple[Entry, ...], target: Path) -> None:
    """Make the links of a listing; last of all, so that nothing is ever written through one."""
    for entry in entries:
        if entry.kind == "link":
            place = target / entry.path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(entry.content)


def _write(content: BinaryIO | gzip.GzipFile, entry: Entry, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    digest, left = hashlib.sha256(), entry.bytes
    with place.open("xb") as sink:
        while left:
            piece = content.read(min(left, _PIECE_BYTES))
            if not piece:
                raise BadListing("its content is shorter than its listing says")
            digest.update(piece)
            sink.write(piece)
            left -= len(piece)
    if digest.hexdigest() != entry.content:
        raise BadListing(f"{entry.path!a} does not have the digest of its listing")
    place.chmod(_MODES[entry.kind])
