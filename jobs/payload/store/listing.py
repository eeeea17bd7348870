"""A listing: every file of a folder with the digest of its bytes. Its own sha256 is the name of it all.

Names come from listings alone and bytes are only bytes, so that there is no archive format whose odd corners a hostile
one could use.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from ..bounds import read_json

FORMAT = 1
LISTING = "listing.json"
Kind = Literal["file", "program", "link"]  # a program is a file whose owner may execute it
KINDS = frozenset({"file", "program", "link"})
_PART_BYTES_MAX, _PATH_BYTES_MAX = 255, 1_024
_LINKS_MAX = 40  # followed on the way to one place, as the kernel counts them


class BadListing(ValueError):
    """A listing or what it names is not what it must be; nothing of it is used."""


class Entry(NamedTuple):
    """One file, or a link whose target is ``content``; else ``content`` is the sha256 of its bytes."""

    path: str
    kind: Kind
    content: str
    bytes: int


class ListingLimits(NamedTuple):
    """How much one listing may name, and how long it may be itself."""

    files: int
    bytes: int
    listing_bytes: int


def encode_listing(entries: Iterable[Entry], limits: ListingLimits, **more: Any) -> bytes:
    """Return the one form in which a listing is written. Raises BadListing for what no session would unpack."""
    document = {"format": FORMAT, "entries": sorted(entries), **more}
    data = json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
    parse_listing(data, limits)
    return data


def parse_listing(data: bytes, limits: ListingLimits) -> tuple[tuple[Entry, ...], Mapping[str, Any]]:
    """Return the entries of a listing, by path, and the document they were in.

    Raises BadListing unless all stay inside their folder, within the limits.
    """
    if len(data) > limits.listing_bytes:
        raise BadListing(f"a listing of more than {limits.listing_bytes >> 20} MiB: the names are too long")
    try:
        document = read_json(data)
        if document["format"] != FORMAT:
            raise BadListing(f"listings of format {document['format']!r} cannot be read")
        entries = tuple(_entry(*fields) for fields in document["entries"])
    except (KeyError, TypeError, ValueError) as error:
        raise error if isinstance(error, BadListing) else BadListing(f"not a listing: {error}") from None
    if len(entries) > limits.files:
        raise BadListing(f"more than {limits.files:,} files")
    if sum(entry.bytes for entry in entries) > limits.bytes:
        raise BadListing(f"more than {limits.bytes >> 20:,} MiB")
    _check_together(entries)
    return entries, document


def stays_inside(path: str, target: str, links: Mapping[str, str]) -> bool:
    """Return whether a link at ``path`` leads to a place in its folder, by whatever other links lie on its way."""
    if target.startswith("/") or not target:
        return False
    ahead = [*path.split("/")[:-1], *target.split("/")][::-1]
    place: list[str] = []
    followed = 0
    while ahead:
        part = ahead.pop()
        if part == "..":
            if not place:
                return False
            place.pop()
        elif part not in {"", "."}:
            place.append(part)
            if (inner := links.get("/".join(place))) is not None:
                place.pop()
                followed += 1
                if inner.startswith("/") or followed > _LINKS_MAX:
                    return False
                ahead += inner.split("/")[::-1]
    return True


def _entry(path: Any, kind: Any, content: Any, size: Any) -> Entry:
    if not isinstance(path, str) or not isinstance(content, str) or type(size) is not int:
        raise BadListing("an entry is a path, a kind, a digest or target, and a size")
    try:
        raw = path.encode()
        content.encode()
    except UnicodeEncodeError:
        raise BadListing(f"{path!a} has a name that is no text") from None
    parts = path.split("/")
    if "\0" in path or "\0" in content or any(part in {"", ".", ".."} for part in parts):
        raise BadListing(f"{path!a} is no path inside a folder")
    if len(raw) > _PATH_BYTES_MAX or any(len(part.encode()) > _PART_BYTES_MAX for part in parts):
        raise BadListing(f"{path[:80]!a}... is too long a name")
    if kind not in KINDS or size < 0 or (kind == "link" and size):
        raise BadListing(f"{path!a} is neither a file nor a link")
    return Entry(path, kind, content, size)


def _check_together(entries: tuple[Entry, ...]) -> None:
    paths = [entry.path for entry in entries]
    if paths != sorted(set(paths)):
        raise BadListing("the paths of a listing are in order, each once")
    names = set(paths)
    links = {entry.path: entry.content for entry in entries if entry.kind == "link"}
    for path in paths:
        parts = path.split("/")
        if any("/".join(parts[:depth]) in names for depth in range(1, len(parts))):
            raise BadListing(f"{path!a} lies in what is a file or a link")
    for path, target in links.items():
        if not stays_inside(path, target, links):
            raise BadListing(f"{path!a} is a link out of the folder, to {target!a}")


# The code of a job in the store: a listing that names every file and its digest, and their bytes one after another.
CODE_LIMITS = ListingLimits(files=20_000, bytes=100 << 20, listing_bytes=8 << 20)
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
        data = stream.read(CODE_LIMITS.listing_bytes + 1)
    if hashlib.sha256(data).hexdigest() != digest:
        raise BadListing("its listing does not have the digest it is named by")
    entries, _ = parse_listing(data, CODE_LIMITS)
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
