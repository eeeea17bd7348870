"""Pack a folder as a tree: read it once for its digests, and missing pieces again for the upload. Pin repositories."""

import errno
import hashlib
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Callable
from fnmatch import fnmatchcase
from http.client import HTTPResponse
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from jobs.nouns.keys import REPOSITORY
from jobs.payload.bounded_file import open_below
from jobs.payload.bounds import read_json
from jobs.payload.clock import stopwatch
from jobs.payload.store.hub import GIT, KIND, HubDenied, Repository, get, parse_repository, retry
from jobs.payload.store.tree import LIMITS, PIECE_BYTES, BadListing, Entry, Kind, Tree, encode_listing, encode_tree
from jobs.problem import InvalidInput


class TreeError(InvalidInput):
    """``source`` cannot be packed; the message says why and what to do."""

    def __init__(self, source: str, why: str, remedy: str) -> None:
        super().__init__(f"the files of {source} cannot be taken", why, remedy)


_READ_BYTES = 1 << 20


class PackedFolder:
    """The snapshot of a folder: the listing of its tree, its digest, and access to its pieces."""

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
        """Write the bytes of one piece to ``sink``. Raises TreeError if a file has changed, and OSError."""
        position, end = number * PIECE_BYTES, min((number + 1) * PIECE_BYTES, self._begins[-1])
        digest = hashlib.sha256()
        while position < end:
            index = bisect_right(self._begins, position) - 1
            entry, until = self._files[index], min(end, self._begins[index + 1])
            with _open(self._folder, entry.path) as stream:
                stream.seek(position - self._begins[index])
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
    """Return a folder's snapshot; its links must point inside. ``tell`` gets bytes (done, total). Raises TreeError."""
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
        encode_listing(entries, LIMITS)  # names and links are checked before the long reading
    except BadListing as error:
        raise _unfit(folder, error) from None
    if not entries:
        raise TreeError(str(folder), "it is empty", "Give the folder that has the files")
    return PackedFolder(folder, kind, _read(folder, entries, lambda done: tell(done, total)))


def _read(folder: Path, listed: list[Entry], tell: Callable[[int], None]) -> Tree:
    """Read all listed files, and return their tree. Raises TreeError, OSError."""
    entries: list[Entry] = []
    pieces: list[str] = []
    piece, room, done = hashlib.sha256(), PIECE_BYTES, 0
    for entry in listed:
        if entry.kind == "link":
            entries.append(entry)
            continue
        content, size = hashlib.sha256(), 0
        with _open(folder, entry.path) as stream:
            while size <= entry.bytes and (data := stream.read(min(_READ_BYTES, room))):
                content.update(data)
                piece.update(data)
                size, room, done = size + len(data), room - len(data), done + len(data)
                if not room:
                    pieces.append(piece.hexdigest())
                    piece, room = hashlib.sha256(), PIECE_BYTES
                    tell(done)
        if size != entry.bytes:
            raise _changed(folder, entry.path)
        entries.append(entry._replace(content=content.hexdigest()))
    if room < PIECE_BYTES:
        pieces.append(piece.hexdigest())
    tell(done)
    return Tree(tuple(entries), tuple(pieces))


def _entries(folder: Path) -> list[Entry]:
    """Return the entries of a folder, sorted by path, without their digests. Raises TreeError."""
    entries: list[Entry] = []

    def fail(error: OSError) -> None:
        raise TreeError(
            str(folder), f"{error.filename!a} cannot be read: {error.strerror}", "Let its owner change that"
        )

    for place, folders, names, opened in os.fwalk(folder, onerror=fail, follow_symlinks=False):
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


def _open(folder: Path, path: str) -> BinaryIO:
    """Open a file below a folder without following any link in its path. Raises TreeError."""
    try:
        return open_below(folder, path)
    except OSError as error:
        if error.errno == errno.ENXIO:  # the file was replaced by something else
            raise _changed(folder, path) from None
        raise TreeError(str(folder), f"{path!a} cannot be read: {error.strerror}", "Try again once it can") from None


def _changed(folder: Path, path: str) -> TreeError:
    return TreeError(str(folder), f"{path!a} changed while it was read", "Try again when nobody writes there")


def _unfit(folder: Path, error: BadListing) -> TreeError:
    return TreeError(str(folder), str(error), "Give a folder without it; cp -rL copies what links lead to")


# Pin a repository of the Hub: its commit, and the size and digest of every file.
ENDPOINT = "https://huggingface.co"
_GIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NEXT = re.compile(r"<([^>]+)>\s*;\s*rel=\"?next\"?")
_PAGES_MAX, _LISTING_SECONDS = 1_000, 600
_LISTED = 10  # the number of files that an error lists
_PAGE_BYTES_MAX = 32 << 20


class Pinned(NamedTuple):
    """A repository's listing and its digest; ``at_home``: only the token of this machine may read the files."""

    listing: bytes
    digest: str
    repository: Repository
    at_home: bool


def pin(source: str, endpoint: str, token: str) -> Pinned:
    """Return the current listing of a ``source`` such as ``hf:org/name@main#*.json``. Raises TreeError."""
    match = re.fullmatch(REPOSITORY, source)
    if match is None:
        raise TreeError(source, "it names no repository of the Hub", "Write hf:org/name@revision")
    kind, revision = "datasets" if match["datasets"] else "models", match["revision"] or "main"
    api = f"{endpoint}/api/{kind}/{match['name']}"
    name = f"{match['datasets'] or ''}{match['name']}"
    try:
        document, _ = _document(f"{api}/revision/{quote(revision, safe='')}", token)
        commit = document.get("sha") if isinstance(document, dict) else None
        if not isinstance(commit, str) or not _GIT.fullmatch(commit):
            raise BadListing("the Hub names no commit")
        entries = _files(f"{api}/tree/{commit}?recursive=true", token)
        if not entries:
            raise BadListing("it has no files")
        if match["patterns"]:
            entries = _chosen(entries, match["patterns"].split(","))
        listing = encode_listing(entries, LIMITS, kind=KIND, endpoint=endpoint, name=name, commit=commit)
        repository = parse_repository(listing)
        at_home = _only_at_home(repository, token)
    except HubDenied as error:
        remedy = f"Check the name; accept its terms at {endpoint}/{name}; put a token that may read it into HF_TOKEN"
        raise TreeError(source, f"the Hub does not give it out ({error.code})", remedy) from None
    except FileNotFoundError:
        raise TreeError(source, f"the Hub has no {name} at {revision}", "Check the name and the revision") from None
    except BadListing as error:
        raise TreeError(source, str(error), "Give another repository or revision") from None
    except (OSError, ValueError) as error:
        raise TreeError(source, f"the Hub cannot be asked: {error}", "Try again; HF_ENDPOINT names the Hub") from None
    return Pinned(listing, hashlib.sha256(listing).hexdigest(), repository, at_home)


def _files(address: str, token: str) -> list[Entry]:
    """Return all files of a commit, from all pages of the listing. Raises BadListing, and as ``get``."""
    entries: list[Entry] = []
    first, following, ends_at = urlsplit(address), address, stopwatch() + _LISTING_SECONDS
    for _ in range(_PAGES_MAX):
        if stopwatch() > ends_at:
            raise BadListing(f"the Hub's listing takes more than {_LISTING_SECONDS} s")
        document, link = _document(following, token)
        if not isinstance(document, list):
            raise BadListing("the Hub's listing is none")
        entries += [
            _entry(file) for file in document if not (isinstance(file, dict) and file.get("type") == "directory")
        ]
        if len(entries) > LIMITS.files:
            raise BadListing(f"more than {LIMITS.files:,} files")
        match = _NEXT.search(link)
        if match is None:
            return entries
        following = urljoin(address, match[1])
        if (urlsplit(following).scheme, urlsplit(following).netloc) != (first.scheme, first.netloc):
            raise BadListing("the Hub's listing goes on at another place")
    raise BadListing(f"the Hub's listing has more than {_PAGES_MAX} pages")


def _chosen(entries: list[Entry], patterns: list[str]) -> list[Entry]:
    """Return the files that match any of the patterns, by the rules of the Hub's client. Raises BadListing."""
    chosen: set[Entry] = set()
    for pattern in patterns:
        fits = [entry for entry in entries if fnmatchcase(entry.path, pattern)]
        if not fits:
            listing = ", ".join(entry.path for entry in entries[:_LISTED])
            raise BadListing(f"none of its {len(entries)} files is called {pattern!a}; it has {listing[:300]}")
        chosen.update(fits)
    return sorted(chosen)


def _entry(file: Any) -> Entry:
    """Return one file of the Hub's listing, with its SHA-256, or else its git object name. Raises BadListing."""
    if not isinstance(file, dict) or file.get("type") != "file":
        raise BadListing(f"the Hub lists {str(file)[:80]!a}, which is not a file")
    path, large = file.get("path"), file.get("lfs")
    source = large if isinstance(large, dict) else file
    size, name = source.get("size"), source.get("oid")
    if not isinstance(path, str) or type(size) is not int or not isinstance(name, str):
        raise BadListing(f"the Hub lists a file without path, size or digest: {str(path)[:80]!a}")
    if not (_SHA256 if source is large else _GIT).fullmatch(name):
        raise BadListing(f"the Hub gives {path!a} no digest")
    return Entry(path, "file", name if source is large else f"{GIT}{name}", size)


def _only_at_home(repository: Repository, token: str) -> bool:
    """Return whether only our token can download the files; a listing may be public when the files are not."""
    largest = max(repository.entries, key=lambda entry: entry.bytes)
    address = repository.address(largest.path)

    def probe(secret: str) -> None:
        retry(address, lambda: get(address, secret, lambda answer: answer.read(1), end=1 if largest.bytes > 1 else 0))

    try:
        probe("")
    except HubDenied:
        if not token:
            raise
        probe(token)
        return True
    return False


def _document(address: str, token: str) -> tuple[Any, str]:
    """Return an answer of the Hub's API, and its header Link. Raises BadListing, and as ``get``."""

    def read(answer: HTTPResponse) -> tuple[bytes, str]:
        data = answer.read(_PAGE_BYTES_MAX + 1)
        if len(data) > _PAGE_BYTES_MAX:
            raise BadListing("the Hub's answer is too long")
        return data, answer.headers.get("Link", "")

    data, link = retry(address, lambda: get(address, token, read))
    try:
        return read_json(data), link
    except ValueError:
        raise BadListing("the Hub's answer is no JSON") from None
