"""Pin a repository of the Hub: its commit, and the size and digest of every file, as the Hub lists them now."""

from __future__ import annotations

import hashlib
import re
from fnmatch import fnmatchcase
from http.client import HTTPResponse
from typing import Any, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from jobs.inputs.folder import TreeError
from jobs.payload.bounds import read_json
from jobs.payload.store.hub import GIT, KIND, HubDenied, Repository, ask, parse_repository, patiently
from jobs.payload.store.listing import BadListing, Entry, encode_listing
from jobs.payload.store.tree import LIMITS
from jobs.readers import REPOSITORY

ENDPOINT = "https://huggingface.co"
_GIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NEXT = re.compile(r"<([^>]+)>\s*;\s*rel=\"?next\"?")
_PAGES_MAX = 1_000
_NAMED = 10  # files that an error names
_PAGE_BYTES_MAX = 32 << 20


class Pinned(NamedTuple):
    """A repository's listing and its digest; ``at_home``: only the token of this machine opens it."""

    listing: bytes
    digest: str
    repository: Repository
    at_home: bool


def pin(source: str, endpoint: str, token: str) -> Pinned:
    """Ask the Hub what a ``source``, such as ``hf:org/name@main#*.json``, is now. Raises TreeError."""
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
    """Return all files of a commit, from as many pages as there are. Raises BadListing and what ``ask`` raises."""
    entries: list[Entry] = []
    first, following = urlsplit(address), address
    for _ in range(_PAGES_MAX):
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
    """Return the files that one of the patterns fits, as the Hub's own client reads them. Raises BadListing."""
    chosen: set[Entry] = set()
    for pattern in patterns:
        fits = [entry for entry in entries if fnmatchcase(entry.path, pattern)]
        if not fits:
            listing = ", ".join(entry.path for entry in entries[:_NAMED])
            raise BadListing(f"none of its {len(entries)} files is called {pattern!a}; it has {listing[:300]}")
        chosen.update(fits)
    return sorted(chosen)


def _entry(file: Any) -> Entry:
    """Read one file of the Hub's listing: its sha256 where it has one, else the name that git gives its bytes."""
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
    """Return whether files are given out with our token alone; a listing may be shown to those who get no file."""
    largest = max(repository.entries, key=lambda entry: entry.bytes)
    address = repository.address(largest.path)

    def probe(path: str) -> None:
        patiently(address, lambda: ask(address, path, lambda answer: answer.read(1), end=1 if largest.bytes > 1 else 0))

    try:
        probe("")
    except HubDenied:
        if not token:
            raise
        probe(token)
        return True
    return False


def _document(address: str, token: str) -> tuple[Any, str]:
    """Return an answer of the Hub's interface and where it goes on. Raises ValueError and what ``ask`` raises."""

    def take(answer: HTTPResponse) -> tuple[bytes, str]:
        data = answer.read(_PAGE_BYTES_MAX + 1)
        if len(data) > _PAGE_BYTES_MAX:
            raise BadListing("the Hub's answer is too long")
        return data, answer.headers.get("Link", "")

    data, link = patiently(address, lambda: ask(address, token, take))
    try:
        return read_json(data), link
    except ValueError:
        raise BadListing("the Hub's answer is no JSON") from None
