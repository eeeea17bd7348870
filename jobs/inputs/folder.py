"""Pack a folder as a tree: all of it is read once for its digest, and what the store lacks a second time."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

from jobs.payload.bounded_file import open_below
from jobs.payload.store.listing import BadListing, Entry, Kind, encode_listing
from jobs.payload.store.tree import LIMITS, PIECE_BYTES, Tree, encode_tree
from jobs.problem import InvalidInput


# Why a folder cannot be put into the store.
class TreeError(InvalidInput):
    """``source`` cannot be taken as it is; the message says why and what to do."""

    def __init__(self, source: str, why: str, remedy: str) -> None:
        super().__init__(f"the files of {source} cannot be taken", why, remedy)


_READ_BYTES = 1 << 20


class PackedFolder:
    """A folder as it stood when it was read: the listing of its tree, the digest of that, and its bytes by piece."""

    def __init__(self, folder: Path, kind: str, tree: Tree) -> None:
        """Raises TreeError."""
        try:
            self.listing = encode_tree(kind, tree)
        except BadListing as error:
            raise _unfit(folder, error) from None
        self.digest = hashlib.sha256(self.listing).hexdigest()
        self.tree = tree
        self._folder = folder
        self._files = [entry for entry in tree.entries if entry.kind != "link" and entry.bytes]
        self._begins = [0, *accumulate(entry.bytes for entry in self._files)]

    def write_piece(self, number: int, sink: BinaryIO) -> None:
        """Write the bytes of one piece. Raises TreeError when they are not what they were, OSError."""
        position, end = number * PIECE_BYTES, min((number + 1) * PIECE_BYTES, self._begins[-1])
        digest = hashlib.sha256()
        while position < end:
            place = bisect_right(self._begins, position) - 1
            entry, until = self._files[place], min(end, self._begins[place + 1])
            with _opened(self._folder, entry.path) as stream:
                stream.seek(position - self._begins[place])
                while position < until:
                    data = stream.read(min(_READ_BYTES, until - position))
                    if not data:
                        raise _changed(self._folder, entry.path)
                    digest.update(data)
                    sink.write(data)
                    position += len(data)
        if digest.hexdigest() != self.tree.pieces[number]:
            raise _changed(self._folder, f"piece {number}")


def pack_folder(folder: Path, kind: str, tell: Callable[[int, int], None] = lambda _done, _all: None) -> PackedFolder:
    """Read all of a folder, hidden files too; links stay links and must lead to what is inside. Raises TreeError.

    ``tell`` hears how many bytes of how many were read.
    """
    if not folder.is_dir():
        raise TreeError(
            str(folder), "there is no such folder", "Write its whole path, or one relative to the job's file"
        )
    entries = _entries(folder)
    total = sum(entry.bytes for entry in entries)
    if total > LIMITS.bytes:
        largest = sorted(entries, key=lambda entry: -entry.bytes)[:3]
        listing = ", ".join(f"{entry.path!a} ({entry.bytes / 1e9:.1f} GB)" for entry in largest)
        why = f"it has {total / 1e9:.1f} GB, at most {LIMITS.bytes / 1e9:.1f} are taken; largest: {listing}"
        raise TreeError(str(folder), why, "Give a folder that holds only what sessions read")
    try:
        encode_listing(entries, LIMITS)  # names and links are judged before hours are spent on reading
    except BadListing as error:
        raise _unfit(folder, error) from None
    if not entries:
        raise TreeError(str(folder), "it is empty", "Give the folder that has the files")
    return PackedFolder(folder, kind, _read(folder, entries, lambda done: tell(done, total)))


def _read(folder: Path, listed: list[Entry], tell: Callable[[int], None]) -> Tree:
    """Read all files; return their tree. Raises TreeError, OSError."""
    entries: list[Entry] = []
    pieces: list[str] = []
    piece, room, done = hashlib.sha256(), PIECE_BYTES, 0
    for entry in listed:
        if entry.kind == "link":
            entries.append(entry)
            continue
        whole, size = hashlib.sha256(), 0
        with _opened(folder, entry.path) as stream:
            while size <= entry.bytes and (data := stream.read(min(_READ_BYTES, room))):
                whole.update(data)
                piece.update(data)
                size, room, done = size + len(data), room - len(data), done + len(data)
                if not room:
                    pieces.append(piece.hexdigest())
                    piece, room = hashlib.sha256(), PIECE_BYTES
                    tell(done)
        if size != entry.bytes:
            raise _changed(folder, entry.path)
        entries.append(entry._replace(content=whole.hexdigest()))
    if room < PIECE_BYTES:
        pieces.append(piece.hexdigest())
    tell(done)
    return Tree(tuple(entries), tuple(pieces))


def _entries(folder: Path) -> list[Entry]:
    """Return what lies in a folder, by path, its digests not known yet."""
    entries: list[Entry] = []

    def cannot(error: OSError) -> None:
        raise TreeError(
            str(folder), f"{error.filename!a} cannot be read: {error.strerror}", "Let its owner change that"
        )

    for place, folders, names, opened in os.fwalk(folder, onerror=cannot, follow_symlinks=False):
        inside = os.path.relpath(place, folder)
        for name in [*names, *folders]:
            path = name if inside == "." else f"{inside}/{name}"
            try:
                status = os.stat(name, dir_fd=opened, follow_symlinks=False)
            except FileNotFoundError:
                raise _changed(folder, path) from None
            if stat.S_ISLNK(status.st_mode):
                entries.append(Entry(path, "link", os.readlink(name, dir_fd=opened), 0))
            elif stat.S_ISREG(status.st_mode):
                kind: Kind = "program" if status.st_mode & stat.S_IXUSR else "file"
                entries.append(Entry(path, kind, "", status.st_size))
            elif not stat.S_ISDIR(status.st_mode):
                raise TreeError(str(folder), f"{path!a} is a device, a socket or a pipe", "Give a folder without it")
            if len(entries) > LIMITS.files:
                why = f"it has more than {LIMITS.files:,} files"
                raise TreeError(str(folder), why, "Put small files together into larger ones")
    return sorted(entries)


def _opened(folder: Path, path: str) -> BinaryIO:
    """Open a file below a folder without following a link anywhere on the way. Raises TreeError."""
    try:
        return open_below(folder, path)
    except OSError as error:
        if error.errno == errno.ENXIO:  # what stands there was replaced by something that is not a file
            raise _changed(folder, path) from None
        raise TreeError(str(folder), f"{path!a} cannot be read: {error.strerror}", "Try again once it can") from None


def _changed(folder: Path, path: str) -> TreeError:
    return TreeError(str(folder), f"{path!a} changed while it was read", "Try again when nobody writes there")


def _unfit(folder: Path, error: BadListing) -> TreeError:
    return TreeError(str(folder), str(error), "Give a folder without it; cp -rL copies what links lead to")
