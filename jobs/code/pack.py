"""Take a job's code: each file is read once, hashed, and written where the store will take it from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from jobs.code import git
from jobs.code.errors import CodeError
from jobs.code.folder import plain_names, read, too_many
from jobs.code.ignore import NAME, Ignore
from jobs.payload.store.listing import CODE_LIMITS, BadListing, Entry, Kind, encode_listing
from jobs.spec import Code

_RULES_BYTES_MAX = 1 << 20
_KIND: dict[bytes, Kind] = {b"100644": "file", b"100664": "file", b"100755": "program", b"120000": "link"}
_MODE = {"file": b"100644", "program": b"100755", "link": b"120000"}


def pack(code: Code, sink: BinaryIO) -> tuple[Code, bytes]:
    """Write the bytes of all files one after another; return the code with its digest and figures, and its listing.

    Raises CodeError.
    """
    folder = Path(code.source)
    if not folder.is_dir():
        raise CodeError(
            code.source, "there is no such folder", "Write its whole path, or one relative to the job's file"
        )
    taken = _Taking(folder)
    commit, dirty = _of_commit(taken, code.revision, sink) if code.revision else _of_folder(taken, sink)
    if not taken.entries:
        remedy = "Give another folder; git status --ignored tells what git leaves out"
        raise CodeError(code.source, "nothing is in it that git or .schedignore would not leave out", remedy)
    try:
        listing = encode_listing(taken.entries, CODE_LIMITS)
    except BadListing as error:
        raise CodeError(code.source, str(error), "Name it in .schedignore if no session needs it") from None
    known = replace(
        code,
        digest=hashlib.sha256(listing).hexdigest(),
        commit=commit,
        dirty=dirty,
        files=len(taken.entries),
        bytes=CODE_LIMITS.bytes - taken.left,
    )
    return known, listing


def names(code: Code) -> frozenset[str]:
    """Return the paths that would be taken now, without reading them. Raises CodeError."""
    folder = Path(code.source)
    if not folder.is_dir():
        raise CodeError(
            code.source, "there is no such folder", "Write its whole path, or one relative to the job's file"
        )
    if code.revision:
        found = git.tree(folder, git.resolve(folder, code.revision)).keys()
        return frozenset(os.fsdecode(name) for name in found)
    rules = _rules(folder)
    found_here = git.work(folder).names if git.has_git(folder) else plain_names(folder, rules.leaves_out)
    paths = (os.fsdecode(name) for name in found_here)
    return frozenset(path for path in paths if not rules.leaves_out(path))


class _Taking:
    """The entries so far, and how much there may still be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[Entry] = []
        self.left = CODE_LIMITS.bytes

    def take(self, path: str, kind: Kind, data: bytes, sink: BinaryIO) -> None:
        """Add one file or link."""
        if len(self.entries) >= CODE_LIMITS.files:
            raise too_many(self.folder)
        if kind == "link":
            self.entries.append(Entry(path, kind, os.fsdecode(data), 0))
            return
        self.left -= len(data)
        sink.write(data)
        self.entries.append(Entry(path, kind, hashlib.sha256(data).hexdigest(), len(data)))


def _of_folder(taken: _Taking, sink: BinaryIO) -> tuple[str, bool]:
    """Take a folder as it stands; return the commit it stands on, if any, and whether it differs from that."""
    folder = taken.folder
    rules = _rules(folder)
    found = git.work(folder) if git.has_git(folder) else None
    names = plain_names(folder, rules.leaves_out) if found is None else found.names
    wanted = [name for name in _in_order(names) if not rules.leaves_out(os.fsdecode(name))]
    if len(wanted) > CODE_LIMITS.files:
        raise too_many(folder)
    here: dict[bytes, git.Blob] = {}
    for name in wanted:
        there = read(folder, name, taken.left)
        if there is None:
            continue  # git remembers it, and it is gone
        kind, data = there
        taken.take(os.fsdecode(name), kind, data, sink)
        if found is not None and (known := found.tree.get(name)) is not None:
            here[name] = git.Blob(_MODE[kind], _object(data, like=known.object))
        else:
            here[name] = git.Blob(b"", b"")
    if found is None or not found.commit:
        return "", False
    told = {name: blob for name, blob in found.tree.items() if not rules.leaves_out(os.fsdecode(name))}
    return found.commit, found.moved or here != told


def _of_commit(taken: _Taking, revision: str, sink: BinaryIO) -> tuple[str, bool]:
    """Take what a commit holds, out of the repository's objects."""
    folder = taken.folder
    commit = git.resolve(folder, revision)
    tree = git.tree(folder, commit)
    rules_blob = tree.get(NAME.encode())
    found_rules = git.contents(folder, [rules_blob.object], _RULES_BYTES_MAX) if rules_blob else [b""]
    rules = Ignore(found_rules[0].decode("utf-8-sig", errors="replace"), str(folder))
    wanted = [name for name in _in_order(tree.keys()) if not rules.leaves_out(os.fsdecode(name))]
    if len(wanted) > CODE_LIMITS.files:
        raise too_many(folder)
    for name in wanted:
        if tree[name].mode not in _KIND:
            why = f"{os.fsdecode(name)!a} is a submodule, whose files are in another repository"
            raise CodeError(str(folder), why, "Check it out and give the folder instead of the commit")
    for name, data in zip(
        wanted, git.contents(folder, [tree[name].object for name in wanted], CODE_LIMITS.bytes), strict=True
    ):
        taken.take(os.fsdecode(name), _KIND[tree[name].mode], data, sink)
    return commit, False


def _rules(folder: Path) -> Ignore:
    found = read(folder, NAME.encode(), _RULES_BYTES_MAX)
    return Ignore(
        "" if found is None or found[0] == "link" else found[1].decode("utf-8-sig", errors="replace"), str(folder)
    )


def _in_order(names: Iterable[bytes]) -> list[bytes]:
    """Return names as their listing will have them: content comes in the listing's order."""
    return sorted(names, key=os.fsdecode)


def _object(data: bytes, like: bytes) -> bytes:
    """Return the name git gives to bytes; how long another name is tells by which hash."""
    make = hashlib.sha1 if len(like) == 40 else hashlib.sha256
    return make(b"blob %d\0" % len(data) + data).hexdigest().encode()
