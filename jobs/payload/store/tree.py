"""Folders in the store, as a listing and their bytes, named by the digest of the listing: a job's code, and trees.

A tree is a folder of any size, stored in pieces that are each named by their digest.

The pieces are those of all files one after another, so that many small files are few objects, and a large one goes on
where its fetching was cut off. The listing is written last and named ``listing.json``.
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

# A listing: every file of a folder with the digest of its bytes. Its own sha256 is the name of it all.
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
    """Return the entries of a listing and its document. Raises BadListing beyond the limits or the folder."""
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
    """Return whether a link at ``path`` leads to a place in its folder, also through other links."""
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
_CODE_MODES = {"file": 0o644, "program": 0o755}


def code_prefix(digest: str) -> str:
    """Return the folder of the store in which listing and content are."""
    return f"code/{digest}"


def unpack(folder: Path, digest: str, target: Path) -> tuple[Entry, ...]:
    """Unpack the code ``digest`` of the store's ``folder`` into ``target``, verified. Raises BadListing, OSError."""
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
    with place.open("xb") as sink:
        digest = pour(_pieces(content, entry.bytes), sink)
        if sink.tell() < entry.bytes:
            raise BadListing("its content is shorter than its listing says")
    if digest != entry.content:
        raise BadListing(f"{entry.path!a} does not have the digest of its listing")
    place.chmod(_CODE_MODES[entry.kind])


def _pieces(source: BinaryIO | gzip.GzipFile, left: int) -> Iterator[bytes]:
    """Yield at most ``left`` bytes of a stream."""
    while left and (piece := source.read(min(left, _READ_BYTES))):
        left -= len(piece)
        yield piece


LIMITS = ListingLimits(files=100_000, bytes=50 << 30, listing_bytes=48 << 20)
PIECE_BYTES = 64 << 20
_FILE_BYTES = 4 << 10  # what one more file takes of a disk, about
_READ_BYTES = 1 << 20
_TELL_BYTES = 1 << 30
_MODES = {"file": 0o444, "program": 0o555}


class Tree(NamedTuple):
    """The parsed listing of a tree: its files by path, and the sha256 of each piece of their bytes."""

    entries: tuple[Entry, ...]
    pieces: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Of all files together."""
        return sum(entry.bytes for entry in self.entries)


def tree_prefix(kind: str, digest: str) -> str:
    """Return the folder of the store in which listing and pieces of a tree are; ``kind`` is what it is for."""
    return f"{kind}/{digest}"


def encode_tree(kind: str, tree: Tree) -> bytes:
    """Return a tree's listing, which its ``kind`` (purpose) is part of. Raises BadListing if it is invalid."""
    data = encode_listing(tree.entries, LIMITS, kind=kind, pieces=tree.pieces)
    parse_tree(data)
    return data


def parse_tree(data: bytes) -> Tree:
    """Read a tree's listing. Raises BadListing."""
    entries, document = parse_listing(data, LIMITS)
    pieces = document.get("pieces")
    if not isinstance(pieces, list) or not all(isinstance(piece, str) and _is_digest(piece) for piece in pieces):
        raise BadListing("the pieces of a tree are digests")
    tree = Tree(entries, tuple(pieces))
    if len(pieces) != -(-tree.bytes // PIECE_BYTES):
        raise BadListing(f"{tree.bytes:,} bytes are not {len(pieces)} pieces")
    return tree


def fetch_tree(
    transport: Fetches, prefix: str, target: Path, tell: Callable[[int, int], None] = lambda _done, _all: None
) -> Tree:
    """Put the files of the tree at ``prefix`` into the read-only folder ``target``; return what they are.

    ``prefix`` ends in the tree's digest (see ``tree_prefix``). What is there whole is used as it is, what a killed
    process left in the making is checked and gone on with, and of several processes that want the same one fetches.
    Every byte is checked before ``target`` appears. ``tell`` is called with (bytes done, total bytes). Raises
    BadListing for what is damaged in the store, FileNotFoundError for what is not there, OSError otherwise, with
    ENOSPC before anything is fetched that the disk does not hold.
    """
    with making_of(target) as making:
        tree = parse_tree(fetch_listing(transport, prefix, making))
        if not is_whole(target, tree.entries):
            content = _Content(transport, prefix, tree, making / "piece", tell)
            make(target, making, tree.entries, content.take)
    return tree


@contextmanager
def making_of(target: Path) -> Iterator[Path]:
    """Yield the folder in which ``target`` is made; it goes when that is done, and stays when it fails."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target):
        making = target.with_name(f".{target.name}.making")
        making.mkdir(exist_ok=True)
        yield making
        shutil.rmtree(making, ignore_errors=True)


def by_gigabytes(tell: Callable[[str], None]) -> Callable[[int, int], None]:
    """Return what is called with the bytes done so far and with all; after each gigabyte it tells ``1.0 of 3.2 GB``."""
    reported = 0

    def count(done: int, total: int) -> None:
        nonlocal reported
        if done - reported >= _TELL_BYTES:
            reported = done
            tell(f"{done / 1e9:.1f} of {total / 1e9:.1f} GB")

    return count


def make(target: Path, making: Path, entries: tuple[Entry, ...], take: Callable[[Entry, Path], None]) -> None:
    """Let ``take`` bring each file to its place, go on from what is there, and let all appear at once, read-only."""
    remove_tree(target)
    files = making / "files"
    files.mkdir(exist_ok=True)
    check_room(files, entries)
    for entry in entries:
        if entry.kind != "link":
            (files / entry.path).parent.mkdir(parents=True, exist_ok=True)
            take(entry, files / entry.path)
    make_links(entries, files)
    seal(files, entries)
    files.chmod(0o755)  # a read-only folder cannot be moved to another folder
    files.rename(target)
    target.chmod(0o555)


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold the right to make ``target``; others wait for it; a process that dies gives it back."""
    lock = _lock(target)
    while True:
        with lock.open("a") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            if _is_there(lock, stream):
                _extend(lock, 0.0)
                yield
                return  # else a sweep removed it while this one waited


def note_use(target: Path, seconds: float) -> None:
    """Note that ``target`` will be read for so many wall seconds from now on."""
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


def _is_there(lock: Path, stream: IO[str]) -> bool:
    try:
        return lock.stat().st_ino == os.fstat(stream.fileno()).st_ino
    except FileNotFoundError:
        return False


def _extend(lock: Path, seconds: float) -> None:
    """A lock's time is when the last of its users known so far has ended; it is never put back."""
    noted_at = lock.stat().st_mtime if lock.exists() else 0.0
    lock.touch()
    until = max(noted_at, lock.stat().st_mtime + seconds)
    os.utime(lock, (until, until))


def remove_tree(folder: Path) -> None:
    """Remove a read-only folder, if it is there. Raises OSError."""
    if not folder.is_symlink() and not folder.exists():
        return
    for name, _, _ in os.walk(folder):
        Path(name).chmod(0o700)
    shutil.rmtree(folder)


def check_room(files: Path, entries: tuple[Entry, ...]) -> None:
    """Raise OSError (ENOSPC) unless the disk holds what is still missing of ``entries`` in the folder ``files``."""
    here = sum(path.lstat().st_size for path in files.rglob("*") if not path.is_dir())
    missing = sum(entry.bytes for entry in entries) - here
    wanted = max(0, missing) + PIECE_BYTES + _FILE_BYTES * len(entries)
    filesystem = os.statvfs(files)
    free = filesystem.f_bavail * filesystem.f_frsize
    if missing > 0 and free < wanted:
        raise OSError(
            errno.ENOSPC, f"{wanted / 1e9:.2f} GB are wanted and {free / 1e9:.2f} GB are free on the disk of {files}"
        )


def seal(files: Path, entries: tuple[Entry, ...]) -> None:
    """Make a folder and all in it read-only."""
    for entry in entries:
        if entry.kind != "link":
            (files / entry.path).chmod(_MODES[entry.kind])
    for name, _, _ in os.walk(files, topdown=False):
        Path(name).chmod(0o555)


class _Content:
    """The bytes of a tree one after another, a piece of them at a time on the disk."""

    def __init__(
        self, transport: Fetches, prefix: str, tree: Tree, scratch: Path, tell: Callable[[int, int], None]
    ) -> None:
        self._transport, self._prefix, self._tree, self._scratch = transport, prefix, tree, scratch
        self._tell, self._bytes = tell, tree.bytes
        self._piece = -1  # the one that is in the scratch file
        self._begin = 0  # of the file to be taken next

    def take(self, entry: Entry, place: Path) -> None:
        """Write the next bytes to a file, unless it exists. Raises BadListing, OSError."""
        begin, end = self._begin, self._begin + entry.bytes
        self._begin = end
        if place.exists() and place.stat().st_size == entry.bytes and sha256_file(place) == entry.content:
            return
        kept = self._checked_bytes(place, begin, entry.bytes)
        if self._write(place, begin, kept, end) == entry.content:
            return
        if not kept or self._write(place, begin, 0, end) != entry.content:
            place.unlink()
            raise BadListing(f"{entry.path!a} does not have the digest of its listing")

    @staticmethod
    def _checked_bytes(place: Path, begin: int, size: int) -> int:
        """Return how much of a broken-off file can stay: whole pieces, since only these were checked."""
        here = place.stat().st_size if place.exists() else 0
        return max(0, (begin + here) // PIECE_BYTES * PIECE_BYTES - begin) if here < size else 0

    def _write(self, place: Path, begin: int, kept: int, end: int) -> str:
        """Write a file from byte ``kept`` on; return the digest of all of it."""
        digest = hashlib.sha256()
        with place.open("ab+") as sink:
            sink.truncate(kept)
            sink.seek(0)
            while piece := sink.read(_READ_BYTES):
                digest.update(piece)
            position = begin + kept
            while position < end:
                number, start = divmod(position, PIECE_BYTES)
                with self._fetched(number).open("rb") as source:
                    source.seek(start)
                    for piece in _pieces(source, min(end - position, PIECE_BYTES - start)):
                        digest.update(piece)
                        sink.write(piece)
                        position += len(piece)
        return digest.hexdigest()

    def _fetched(self, number: int) -> Path:
        """Return the scratch file with a piece in it. Raises BadListing, OSError."""
        if number != self._piece:
            self._scratch.unlink(missing_ok=True)
            self._piece, wanted = -1, self._tree.pieces[number]
            size = min(PIECE_BYTES, self._bytes - number * PIECE_BYTES)
            fetched = self._transport.fetch(f"{self._prefix}/{wanted}", self._scratch)
            if fetched != wanted or self._scratch.stat().st_size != size:
                raise BadListing(f"piece {number} does not have the digest it is named by")
            self._piece = number
            self._tell(number * PIECE_BYTES + size, self._bytes)
        return self._scratch


def fetch_listing(transport: Fetches, prefix: str, making: Path) -> bytes:
    """Return the listing at a prefix that ends in its digest. Raises BadListing, OSError."""
    place = making / LISTING
    place.unlink(missing_ok=True)
    if transport.fetch(f"{prefix}/{LISTING}", place) != prefix.rpartition("/")[2]:
        raise BadListing("its listing does not have the digest it is named by")
    with place.open("rb") as stream:
        return stream.read(LIMITS.listing_bytes + 1)


def is_whole(target: Path, entries: tuple[Entry, ...]) -> bool:
    """Return whether a folder that was checked once is still there; a power cut may have emptied files of it."""
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


# Mounted inputs: what a platform holds itself and puts into the session, found by the list of its files.
MOUNTED = "kaggle"


class Mounted(NamedTuple):
    """A version of something at Kaggle, as ``kaggle-model:owner/...``, and its files, whose digests are not known."""

    source: str
    entries: tuple[Entry, ...]


class MountPlace(NamedTuple):
    """Where it is."""

    source: str
    folder: Path


def parse_mounted(data: bytes) -> Mounted:
    """Read the listing of a tree that a platform stores. Raises BadListing."""
    entries, document = parse_listing(data, LIMITS)
    source = document.get("source")
    if not isinstance(source, str) or not entries:
        raise BadListing("its listing names nothing that Kaggle has")
    return Mounted(source, entries)


def find_mounted(transport: Transport, prefix: str, target: Path, roots: Sequence[Path]) -> MountPlace:
    """Return where below ``roots`` a listing's files are. Raises BadListing, FileNotFoundError, OSError."""
    with making_of(target) as making:
        mounted = parse_mounted(fetch_listing(transport, prefix, making))
    candidates = {path.resolve(): _likeness(path, mounted.source) for root in roots for path in _named(root, mounted)}
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
    """Return how much of a source's name a path contains: models of one family have files of the same sizes."""
    above = {part.lower() for part in place.parts}
    return sum(part.lower() in above for part in source.partition(":")[2].split("/"))
