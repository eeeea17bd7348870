"""Folders in the store: the code of a job, and trees. The digest of its listing is the name of a folder.

A listing has every file of the folder and its digest. A tree is a folder of any size. The bytes of all its files, one
after another, are stored in pieces of equal size, each named by its digest: many small files need few objects, and an
interrupted download continues at a piece. The listing, ``listing.json``, is written last.
"""

import errno
import fcntl
import gzip
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, NamedTuple

from ..bounds import read_json
from .manifest import sha256_file
from .transport import Fetches, Transport, pour

# A listing has every file of a folder with the digest of its bytes. The SHA-256 of the listing names the folder.
FORMAT = 1
LISTING = "listing.json"
Kind = Literal["file", "program", "link"]  # a program is a file whose owner may execute it
KINDS = frozenset({"file", "program", "link"})
_PART_BYTES_MAX, _PATH_BYTES_MAX = 255, 1_024
_LINKS_MAX = 40  # links on the way to one file, as in the kernel


class BadListing(ValueError):
    """A listing, or a file that it names, is invalid; no file of the folder is used."""


class Entry(NamedTuple):
    """One file or link; ``content`` is the SHA-256 of a file's bytes, or the target of a link."""

    path: str
    kind: Kind
    content: str
    bytes: int


class ListingLimits(NamedTuple):
    """The largest number of files, their largest total size, and the largest size of the listing itself."""

    files: int
    bytes: int
    listing_bytes: int


def encode_listing(entries: Iterable[Entry], limits: ListingLimits, **more: Any) -> bytes:
    """Return a listing as canonical JSON, with the fields ``more``. Raises BadListing as :func:`parse_listing`."""
    document = {"format": FORMAT, "entries": sorted(entries), **more}
    data = json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
    parse_listing(data, limits)
    return data


def parse_listing(data: bytes, limits: ListingLimits) -> tuple[tuple[Entry, ...], Mapping[str, Any]]:
    """Return the entries of a listing, and its JSON object. Raises BadListing beyond the limits or the folder."""
    if len(data) > limits.listing_bytes:
        raise BadListing(f"the listing is larger than {limits.listing_bytes >> 20} MiB: the names are too long")
    try:
        document = read_json(data)
        if document["format"] != FORMAT:
            raise BadListing(f"the format {document['format']!r} of the listing is unknown")
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
    """Return whether a link at ``path`` leads to a place in the folder, also by way of other ``links``."""
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
        raise BadListing("an entry must have a path, a kind, a digest or target, and a size")
    try:
        raw = path.encode()
        content.encode()
    except UnicodeEncodeError:
        raise BadListing(f"{path!a} has a name that is no text") from None
    parts = path.split("/")
    if "\0" in path or "\0" in content or any(part in {"", ".", ".."} for part in parts):
        raise BadListing(f"{path!a} is not a path inside the folder")
    if len(raw) > _PATH_BYTES_MAX or any(len(part.encode()) > _PART_BYTES_MAX for part in parts):
        raise BadListing(f"the name {path[:80]!a}... is too long")
    if kind not in KINDS or size < 0 or (kind == "link" and size):
        raise BadListing(f"{path!a} is neither a file nor a link")
    return Entry(path, kind, content, size)


def _check_together(entries: tuple[Entry, ...]) -> None:
    """Raise BadListing unless paths are sorted and unique, and no path leads through a file or out of the folder."""
    paths = [entry.path for entry in entries]
    if paths != sorted(set(paths)):
        raise BadListing("the paths of a listing must be sorted and unique")
    names = set(paths)
    links = {entry.path: entry.content for entry in entries if entry.kind == "link"}
    for path in paths:
        parts = path.split("/")
        if any("/".join(parts[:depth]) in names for depth in range(1, len(parts))):
            raise BadListing(f"{path!a} lies in what is a file or a link")
    for path, target in links.items():
        if not stays_inside(path, target, links):
            raise BadListing(f"{path!a} is a link out of the folder, to {target!a}")


# The code of a job in the store: a listing, and one compressed object with the bytes of all files one after another.
CODE_LIMITS = ListingLimits(files=20_000, bytes=100 << 20, listing_bytes=8 << 20)
CONTENT = "content.gz"
_CODE_MODES = {"file": 0o644, "program": 0o755}


def code_prefix(digest: str) -> str:
    """Return the key prefix of the listing and the content of a job's code."""
    return f"code/{digest}"


def unpack(folder: Path, digest: str, target: Path) -> tuple[Entry, ...]:
    """Unpack the code ``digest`` into ``target``; return its verified entries. Raises BadListing and OSError."""
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
    """Create the links of a listing. Call this last, so that no file is written through a link."""
    for entry in entries:
        if entry.kind == "link":
            path = target / entry.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(entry.content)


def _write(content: BinaryIO | gzip.GzipFile, entry: Entry, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as sink:
        digest = pour(_pieces(content, entry.bytes), sink)
        if sink.tell() < entry.bytes:
            raise BadListing("its content is shorter than its listing says")
    if digest != entry.content:
        raise BadListing(f"{entry.path!a} does not have the digest of its listing")
    path.chmod(_CODE_MODES[entry.kind])


def _pieces(source: BinaryIO | gzip.GzipFile, left: int) -> Iterator[bytes]:
    """Yield the next ``left`` bytes of a stream in pieces, fewer if the stream ends."""
    while left and (piece := source.read(min(left, _READ_BYTES))):
        left -= len(piece)
        yield piece


LIMITS = ListingLimits(files=100_000, bytes=50 << 30, listing_bytes=48 << 20)
PIECE_BYTES = 64 << 20
_FILE_BYTES = 4 << 10  # about the disk space that a file takes in addition to its bytes
_READ_BYTES = 1 << 20
_REPORT_BYTES = 1 << 30  # bytes between two reports of progress
_MODES = {"file": 0o444, "program": 0o555}


class Tree(NamedTuple):
    """The parsed listing of a tree: its files by path, and the SHA-256 of each piece."""

    entries: tuple[Entry, ...]
    pieces: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """The total size of all files."""
        return sum(entry.bytes for entry in self.entries)


def tree_prefix(kind: str, digest: str) -> str:
    """Return the key prefix of a tree's listing and pieces; ``kind`` is the purpose of the tree."""
    return f"{kind}/{digest}"


def encode_tree(kind: str, tree: Tree) -> bytes:
    """Return the listing of a tree, which contains its ``kind``. Raises BadListing if it is invalid."""
    data = encode_listing(tree.entries, LIMITS, kind=kind, pieces=tree.pieces)
    parse_tree(data)
    return data


def parse_tree(data: bytes) -> Tree:
    """Return the tree that a listing describes. Raises BadListing."""
    entries, document = parse_listing(data, LIMITS)
    pieces = document.get("pieces")
    if not isinstance(pieces, list) or not all(isinstance(piece, str) and _is_digest(piece) for piece in pieces):
        raise BadListing("the pieces of a tree must be digests")
    tree = Tree(entries, tuple(pieces))
    if len(pieces) != -(-tree.bytes // PIECE_BYTES):
        raise BadListing(f"{len(pieces)} pieces cannot hold exactly {tree.bytes:,} bytes")
    return tree


def fetch_tree(
    transport: Fetches, prefix: str, target: Path, tell: Callable[[int, int], None] = lambda _done, _all: None
) -> Tree:
    """Download the tree at ``prefix`` into the read-only folder ``target``; return the tree.

    ``prefix`` ends in the tree's digest (see ``tree_prefix``). A complete ``target`` is used without a download. Files
    that a killed process has left are verified and completed. If several processes need the same tree, one of them
    downloads it. ``target`` appears once every byte is verified. ``tell`` is called with (bytes done, total bytes).
    Raises BadListing for a damaged object in the store, FileNotFoundError for a missing one, and OSError otherwise:
    ENOSPC before the download if the disk has too little space.
    """
    with staging_folder(target) as staging:
        tree = parse_tree(fetch_listing(transport, prefix, staging))
        if not is_whole(target, tree.entries):
            content = _Content(transport, prefix, tree, staging / "piece", tell)
            build_tree(target, staging, tree.entries, content.write_next)
    return tree


@contextmanager
def staging_folder(target: Path) -> Iterator[Path]:
    """Yield the folder in which ``target`` is built. It is removed after success, and stays after a failure."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target):
        staging = target.with_name(f".{target.name}.making")
        staging.mkdir(exist_ok=True)
        yield staging
        shutil.rmtree(staging, ignore_errors=True)


def by_gigabytes(tell: Callable[[str], None]) -> Callable[[int, int], None]:
    """Return a progress callback, to call with (bytes done, total bytes); it tells ``1.0 of 3.2 GB`` once per GiB."""
    reported = 0

    def count(done: int, total: int) -> None:
        nonlocal reported
        if done - reported >= _REPORT_BYTES:
            reported = done
            tell(f"{done / 1e9:.1f} of {total / 1e9:.1f} GB")

    return count


def build_tree(target: Path, staging: Path, entries: tuple[Entry, ...], write: Callable[[Entry, Path], None]) -> None:
    """Build ``target`` in ``staging``, then rename it, read-only; ``write`` writes or completes one file."""
    remove_tree(target)
    files = staging / "files"
    files.mkdir(exist_ok=True)
    check_room(files, entries)
    for entry in entries:
        if entry.kind != "link":
            (files / entry.path).parent.mkdir(parents=True, exist_ok=True)
            write(entry, files / entry.path)
    make_links(entries, files)
    seal(files, entries)
    files.chmod(0o755)  # a read-only folder cannot be moved to another folder
    files.rename(target)
    target.chmod(0o555)


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold the lock to build ``target``. Other processes wait for it; a process that dies releases it."""
    lock = _lock(target)
    while True:
        with lock.open("a") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            if _is_current(lock, stream):
                _extend(lock, 0.0)
                yield
                return  # otherwise ``sweep_trees`` has removed the lock file in the meantime: try again


def record_use(target: Path, seconds: float) -> None:
    """Record that a session will read ``target`` for ``seconds`` wall seconds from now on."""
    _extend(_lock(target), max(0.0, seconds))


def sweep_trees(cache: Path, before: float) -> list[str]:
    """Remove cached trees that no session reads after ``before`` (UTC seconds); return their names. Raises OSError."""
    removed = []
    for lock in sorted(cache.glob(".*.lock")):
        with lock.open("a") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if lock.stat().st_mtime < before:
                name = lock.name[1 : -len(".lock")]
                remove_tree(cache / f".{name}.making")
                remove_tree(cache / name)
                lock.unlink()
                removed.append(name)
    return removed


def _lock(target: Path) -> Path:
    return target.with_name(f".{target.name}.lock")


def _is_current(lock: Path, stream: IO[str]) -> bool:
    """Return whether an open lock file is still the file at its path."""
    try:
        return lock.stat().st_ino == os.fstat(stream.fileno()).st_ino
    except FileNotFoundError:
        return False


def _extend(lock: Path, seconds: float) -> None:
    """Set the modification time of a lock file, which is when its last user ends, to a later time only."""
    used_until = lock.stat().st_mtime if lock.exists() else 0.0
    lock.touch()
    until = max(used_until, lock.stat().st_mtime + seconds)
    os.utime(lock, (until, until))


def remove_tree(folder: Path) -> None:
    """Remove a read-only folder if it exists. Raises OSError."""
    if not folder.is_symlink() and not folder.exists():
        return
    for name, _, _ in os.walk(folder):
        Path(name).chmod(0o700)
    shutil.rmtree(folder)


def check_room(files: Path, entries: tuple[Entry, ...]) -> None:
    """Raise OSError (ENOSPC) unless the disk has space for the files that are still missing in the folder ``files``."""
    present = sum(path.lstat().st_size for path in files.rglob("*") if not path.is_dir())
    missing = sum(entry.bytes for entry in entries) - present
    needed = max(0, missing) + PIECE_BYTES + _FILE_BYTES * len(entries)
    filesystem = os.statvfs(files)
    free = filesystem.f_bavail * filesystem.f_frsize
    if missing > 0 and free < needed:
        raise OSError(
            errno.ENOSPC, f"{needed / 1e9:.2f} GB are needed and {free / 1e9:.2f} GB are free on the disk of {files}"
        )


def seal(files: Path, entries: tuple[Entry, ...]) -> None:
    """Make a folder and everything in it read-only."""
    for entry in entries:
        if entry.kind != "link":
            (files / entry.path).chmod(_MODES[entry.kind])
    for name, _, _ in os.walk(files, topdown=False):
        Path(name).chmod(0o555)


class _Content:
    """The bytes of a tree one after another; only one piece at a time is on the disk, in the file ``scratch``."""

    def __init__(
        self, transport: Fetches, prefix: str, tree: Tree, scratch: Path, tell: Callable[[int, int], None]
    ) -> None:
        self._transport, self._prefix, self._tree, self._scratch = transport, prefix, tree, scratch
        self._tell, self._bytes = tell, tree.bytes
        self._piece = -1  # number of the piece in the scratch file; -1: none
        self._begin = 0  # where the next file begins in the tree's bytes

    def write_next(self, entry: Entry, path: Path) -> None:
        """Write the next file of the tree, or complete it. Raises BadListing, OSError."""
        begin, end = self._begin, self._begin + entry.bytes
        self._begin = end
        if path.exists() and path.stat().st_size == entry.bytes and sha256_file(path) == entry.content:
            return
        kept = self._verified_bytes(path, begin, entry.bytes)
        if self._write(path, begin, kept, end) == entry.content:
            return
        if not kept or self._write(path, begin, 0, end) != entry.content:
            path.unlink()
            raise BadListing(f"{entry.path!a} does not have the digest of its listing")

    @staticmethod
    def _verified_bytes(path: Path, begin: int, size: int) -> int:
        """Return how many bytes of an incomplete file can stay: those of whole pieces, since these were verified."""
        present = path.stat().st_size if path.exists() else 0
        return max(0, (begin + present) // PIECE_BYTES * PIECE_BYTES - begin) if present < size else 0

    def _write(self, path: Path, begin: int, kept: int, end: int) -> str:
        """Write a file from its byte ``kept`` on; return the SHA-256 (hex) of the whole file."""
        digest = hashlib.sha256()
        with path.open("ab+") as sink:
            sink.truncate(kept)
            sink.seek(0)
            while piece := sink.read(_READ_BYTES):
                digest.update(piece)
            position = begin + kept
            while position < end:
                number, start = divmod(position, PIECE_BYTES)
                with self._fetch(number).open("rb") as source:
                    source.seek(start)
                    for piece in _pieces(source, min(end - position, PIECE_BYTES - start)):
                        digest.update(piece)
                        sink.write(piece)
                        position += len(piece)
        return digest.hexdigest()

    def _fetch(self, number: int) -> Path:
        """Return the scratch file, with a piece in it. Raises BadListing, OSError."""
        if number != self._piece:
            self._scratch.unlink(missing_ok=True)
            self._piece, expected = -1, self._tree.pieces[number]
            size = min(PIECE_BYTES, self._bytes - number * PIECE_BYTES)
            digest = self._transport.fetch(f"{self._prefix}/{expected}", self._scratch)
            if digest != expected or self._scratch.stat().st_size != size:
                raise BadListing(f"piece {number} does not have the digest it is named by")
            self._piece = number
            self._tell(number * PIECE_BYTES + size, self._bytes)
        return self._scratch


def fetch_listing(transport: Fetches, prefix: str, staging: Path) -> bytes:
    """Return the listing at a prefix that ends in its digest. Raises BadListing, OSError."""
    path = staging / LISTING
    path.unlink(missing_ok=True)
    if transport.fetch(f"{prefix}/{LISTING}", path) != prefix.rpartition("/")[2]:
        raise BadListing("its listing does not have the digest it is named by")
    with path.open("rb") as stream:
        return stream.read(LIMITS.listing_bytes + 1)


def is_whole(target: Path, entries: tuple[Entry, ...]) -> bool:
    """Return whether a verified folder still has all files with their sizes; a power cut may have emptied some."""
    try:
        for entry in entries:
            status = os.lstat(target / entry.path)
            if entry.kind != "link" and status.st_size != entry.bytes:
                return False
    except OSError:
        return False
    return target.is_dir()


def _is_digest(text: str) -> bool:
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


# Mounted inputs: the platform stores and mounts them itself; a listing identifies the folder in the session.
MOUNTED = "kaggle"


class Mounted(NamedTuple):
    """A version of a model or dataset at Kaggle (``kaggle-model:owner/...``), and its files, of unknown digests."""

    source: str
    entries: tuple[Entry, ...]


class MountPlace(NamedTuple):
    """The folder of a mounted input in the session."""

    source: str
    folder: Path


def parse_mounted(data: bytes) -> Mounted:
    """Return the mounted input that a listing describes. Raises BadListing."""
    entries, document = parse_listing(data, LIMITS)
    source = document.get("source")
    if not isinstance(source, str) or not entries:
        raise BadListing("its listing names no source at Kaggle, or no files")
    return Mounted(source, entries)


def find_mounted(transport: Transport, prefix: str, target: Path, roots: Sequence[Path]) -> MountPlace:
    """Return the folder below ``roots`` with the files of a listing. Raises BadListing, FileNotFoundError, OSError."""
    with staging_folder(target) as staging:
        mounted = parse_mounted(fetch_listing(transport, prefix, staging))
    candidates = {path.resolve(): _score(path, mounted.source) for root in roots for path in _candidates(root, mounted)}
    if not candidates:
        raise FileNotFoundError(f"{mounted.source} is not attached to this session")
    complete = {folder: score for folder, score in candidates.items() if not _first_fault(folder, mounted.entries)}
    if not complete:
        folder = max(candidates, key=lambda folder: candidates[folder])
        raise BadListing(f"{folder / _first_fault(folder, mounted.entries)} does not have the size that was listed")
    best = [folder for folder, score in complete.items() if score == max(complete.values())]
    if len(best) > 1:
        listing = ", ".join(map(str, sorted(best)))
        raise BadListing(f"{mounted.source} may be any of {listing}")
    return MountPlace(mounted.source, best[0])


def _candidates(root: Path, mounted: Mounted) -> Iterator[Path]:
    """Yield the folders below ``root`` that have the first file of a listing at its path."""
    parts = mounted.entries[0].path.split("/")
    for folder, _, names in os.walk(root):
        if parts[-1] in names:
            inside = (root / folder).relative_to(root).parts
            if inside[len(inside) - len(parts) + 1 :] == tuple(parts[:-1]):
                yield root.joinpath(*inside[: len(inside) - len(parts) + 1])


def _first_fault(folder: Path, entries: tuple[Entry, ...]) -> str:
    """Return the path of the first file that is missing or has another size; "" if there is none."""
    for entry in entries:
        try:
            if (folder / entry.path).stat().st_size != entry.bytes:
                return entry.path
        except OSError:
            return entry.path
    return ""


def _score(path: Path, source: str) -> int:
    """Return how many parts of a source's name a path has: models of one family have files of the same sizes."""
    above = {part.lower() for part in path.parts}
    return sum(part.lower() in above for part in source.partition(":")[2].split("/"))
