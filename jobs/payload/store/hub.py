"""Repositories of the Hub: a listing in the artifact store pins commit and files, the bytes come from the Hub.

An interrupted download is resumed, even after the death of this process. Download addresses expire and are requested
again; the token is sent to the Hub only; files are verified by their digests.
"""

import hashlib
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from ..bounds import SPAN_MAX, digits
from ..clock import stopwatch
from ..deadline import Deadline, opener
from .manifest import sha256_file
from .transport import Transport
from .tree import LIMITS, BadListing, Entry, fetch_listing, is_whole, make, making_of, parse_listing

_Answer = TypeVar("_Answer")
Tell = Callable[[int, int], None]

KIND = "hub"
GIT = "git:"  # prefix of a git object name; large files have their SHA-256 instead
_SILENCE_SECONDS = 30.0  # without a byte from the server
_ANSWER_SECONDS = 60.0  # for a page of a listing
_PIECE_SECONDS = 600.0  # for one request of a file; the next request continues from there
_SLOWEST_BYTES = 500  # a second; a request that brings fewer makes no progress, or a byte a second would last for ever
_TRIES = 6  # without progress
_WAIT_SECONDS_MAX = 300.0  # at once
_PATIENCE_SECONDS = 300.0  # total, without progress
_REDIRECTS_MAX = 5
_READ_BYTES = 1 << 20


class HubDenied(OSError):
    """The Hub refused access; ``code`` is the HTTP status."""

    def __init__(self, address: str, code: int) -> None:
        super().__init__(
            f"{address} is not given out ({code}): it is private, or its terms must be accepted, or it does not exist. "
            "Put a token that may read it into HF_TOKEN"
        )
        self.code = code


class Again(Exception):
    """A temporary failure: retry, after ``wait_seconds`` if the server asked for it."""

    def __init__(self, why: str, wait_seconds: float | None = None) -> None:
        super().__init__(why)
        self.wait_seconds = wait_seconds


class Repository(NamedTuple):
    """A commit of a repository: ``name`` as in addresses, and its files."""

    endpoint: str
    name: str
    commit: str
    entries: tuple[Entry, ...]

    @property
    def bytes(self) -> int:
        """The total size of all files."""
        return sum(entry.bytes for entry in self.entries)

    def address(self, path: str) -> str:
        """Return the address of a file."""
        return f"{self.endpoint}/{self.name}/resolve/{self.commit}/{quote(path)}"


def parse_repository(data: bytes) -> Repository:
    """Parse the listing of a repository. Raises BadListing."""
    entries, document = parse_listing(data, LIMITS)
    words = [document.get(name) for name in ("endpoint", "name", "commit")]
    endpoint, name, commit = (word if isinstance(word, str) else "" for word in words)
    if not endpoint.startswith(("http://", "https://")) or not name or not commit:
        raise BadListing("its listing names no repository")
    return Repository(endpoint, name, commit, entries)


def fetch_repository(
    transport: Transport, prefix: str, target: Path, tell: Tell = lambda _done, _all: None, token: str = ""
) -> Repository:
    """Download the repository listed at ``prefix`` into ``target``. Raises HubDenied and as ``fetch_tree``."""
    with making_of(target) as making:
        repository = parse_repository(fetch_listing(transport, prefix, making))
        if not is_whole(target, repository.entries):
            download_files(repository, target, making, token, tell)
    return repository


def download_files(repository: Repository, target: Path, making: Path, token: str, tell: Tell) -> None:
    """Download all files into ``target``. Raises HubDenied, BadListing, FileNotFoundError, OSError."""
    done, total = 0, repository.bytes

    def take(entry: Entry, place: Path) -> None:
        nonlocal done
        address = repository.address(entry.path)
        for last in (False, True):
            _download(address, place, entry.bytes, token, lambda here: tell(done + here, total))
            if _digest(place, entry) == entry.content:
                break
            place.unlink()
            if last:
                raise BadListing(f"{entry.path!a} does not have the digest that was pinned")
        done += entry.bytes
        tell(done, total)

    make(target, making, repository.entries, take)


def ask(
    address: str,
    token: str,
    take: Callable[[HTTPResponse], _Answer],
    start: int = 0,
    end: int = 0,
    seconds: float = _ANSWER_SECONDS,
) -> _Answer:
    """Request the bytes [``start``, ``end``) of an object and return the result of ``take`` on the answer.

    ``seconds`` is the deadline for each address, also of redirects.

    Raises HubDenied, FileNotFoundError, and Again for temporary failures.
    """
    first = urlsplit(address)
    place = address
    for _ in range(_REDIRECTS_MAX):
        parts = urlsplit(place)
        if parts.scheme not in {"http", "https"} or (first.scheme == "https" and parts.scheme != "https"):
            raise OSError(f"{address} leads to {parts.scheme}://{parts.netloc}, where nothing is asked for")
        at_hub = (parts.scheme, parts.netloc) == (first.scheme, first.netloc)
        headers = {"User-Agent": "uff-scheduler", "Accept-Encoding": "identity"}
        if start or end:
            headers["Range"] = f"bytes={start}-{end or ''}"
        if token and at_hub:
            headers["Authorization"] = f"Bearer {token}"
        try:
            request = urllib.request.Request(place, headers=headers)  # noqa: S310 - the scheme was checked
            with Deadline(seconds) as deadline, opener(deadline).open(request, timeout=_SILENCE_SECONDS) as answer:
                return take(answer)
        except urllib.error.HTTPError as error:
            with error:
                where = error.headers.get("Location")
                wait = error.headers.get("Retry-After", "")
            if error.code in {301, 302, 303, 307, 308} and where:
                place = urljoin(place, where)
                continue
            raise _meant(address, error.code, wait, at_hub=at_hub) from None
        except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
            raise Again(f"no answer: {error}") from None
    raise OSError(f"{address} leads from place to place, more than {_REDIRECTS_MAX} times")


def patiently(address: str, work: Callable[[], _Answer], advanced: Callable[[], bool] = lambda: False) -> _Answer:
    """Return ``work()``, retried while it raises Again, longer if it ``advanced``. Raises ConnectionError."""
    tries, waited = 0, 0.0
    while True:
        try:
            return work()
        except Again as error:
            tries, waited = (1, 0.0) if advanced() else (tries + 1, waited)
            if tries >= _TRIES or waited >= _PATIENCE_SECONDS:
                raise ConnectionError(f"{address}: {error}, {tries} times") from None
            wait = 0.5 * 2**tries if error.wait_seconds is None else error.wait_seconds
            waited += min(wait, _WAIT_SECONDS_MAX)
            threading.Event().wait(min(wait, _WAIT_SECONDS_MAX))


def _download(address: str, place: Path, size: int, token: str, tell: Callable[[int], None]) -> None:
    """Download a file, resuming a partial download. Raises HubDenied, FileNotFoundError, OSError."""
    furthest, began = 0, 0.0

    def advanced() -> bool:
        nonlocal furthest
        before, furthest = furthest, max(furthest, _size(place))
        return furthest - before >= _SLOWEST_BYTES * max(1.0, stopwatch() - began)

    def go_on() -> None:
        nonlocal began
        began = stopwatch()
        _go_on(address, place, size, token, tell)

    place.touch()
    furthest = _size(place)
    if furthest > size:
        place.write_bytes(b"")
    while _size(place) < size:
        patiently(address, go_on, advanced)


def _go_on(address: str, place: Path, size: int, token: str, tell: Callable[[int], None]) -> None:
    here = _size(place)

    def pour(answer: HTTPResponse) -> None:
        start = _start(answer, here, size)
        with place.open("r+b") as sink:
            sink.truncate(start)
            sink.seek(start)
            _copy(answer, sink, start, size, tell)

    ask(address, token, pour, start=here, seconds=_PIECE_SECONDS)


def _start(answer: HTTPResponse, here: int, size: int) -> int:
    """Return the offset at which an answer starts. Raises Again if it is not of this file."""
    if answer.status == 206:
        content_range = answer.headers.get("Content-Range", "")
        begin, _, total = content_range.removeprefix("bytes ").partition("/")
        if begin.partition("-")[0] != str(here) or total not in {str(size), "*"}:
            raise Again(f"byte {here} of {size} was asked for, and {content_range!a} came")
        return here
    length = answer.headers.get("Content-Length")
    if length is not None and length != str(size):
        raise Again(f"{size} bytes were pinned, and {length} are offered")
    return 0  # the server does not resume: it sends the whole file


def _copy(answer: HTTPResponse, sink: BinaryIO, here: int, size: int, tell: Callable[[int], None]) -> None:
    while piece := answer.read(min(_READ_BYTES, size - here + 1)):
        if here + len(piece) > size:
            sink.truncate(0)
            raise Again(f"more than the {size} bytes that were pinned came")
        sink.write(piece)
        here += len(piece)
        tell(here)
    if here < size:
        raise Again(f"it broke off at byte {here} of {size}")


def _meant(address: str, code: int, wait: str, *, at_hub: bool) -> Exception:
    if code == 429 or code >= 500:
        return Again(f"the Hub answers {code}", digits(wait, SPAN_MAX))
    if not at_hub:
        return Again(f"the address that the Hub gave answers {code}; it may have expired", 0.0)
    if code in {401, 403}:
        return HubDenied(address, code)
    if code == 404:
        return FileNotFoundError(f"{address} is not there")
    return OSError(f"{address} answers {code}")


def _digest(place: Path, entry: Entry) -> str:
    if not entry.content.startswith(GIT):
        return sha256_file(place)
    begun = hashlib.sha1(b"blob %d\0" % entry.bytes, usedforsecurity=False)
    with place.open("rb") as stream:
        return f"{GIT}{hashlib.file_digest(stream, lambda: begun).hexdigest()}"


def _size(place: Path) -> int:
    return place.stat().st_size
