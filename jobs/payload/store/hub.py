"""Download repositories of the Hub: a listing in the artifact store pins their commit and files.

An interrupted download is resumed, also by a new process. Addresses of files expire, and are then requested again. The
token is sent to the Hub only. Files are verified by their digests.
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
from .tree import LIMITS, BadListing, Entry, build_tree, fetch_listing, is_whole, parse_listing, staging_folder

_Answer = TypeVar("_Answer")
Progress = Callable[[int, int], None]  # called with (bytes done, total bytes)

KIND = "hub"
GIT = "git:"  # prefix of a git object name; large files have their SHA-256 instead
_SILENCE_SECONDS = 30.0  # longest time without a byte from the server
_ANSWER_SECONDS = 60.0  # longest time for a page of a listing
_PIECE_SECONDS = 600.0  # longest time for one request of a file; the next request continues from there
_SLOWEST_BYTES = 500  # per second; a slower request counts as no progress, so that it does not go on for ever
_TRIES = 6  # without progress
_WAIT_SECONDS_MAX = 300.0  # longest single wait before a retry
_PATIENCE_SECONDS = 300.0  # longest total of waits without progress
_REDIRECTS_MAX = 5
_READ_BYTES = 1 << 20


class HubDenied(OSError):
    """The Hub refused access; ``code`` is the HTTP status."""

    def __init__(self, address: str, code: int) -> None:
        super().__init__(
            f"access to {address} is denied ({code}): it is private, its terms must be accepted, or it does not exist. "
            "Put a token that may read it into HF_TOKEN"
        )
        self.code = code


class TemporaryFailure(Exception):
    """A failure that a retry may overcome, after ``wait_seconds`` if the server asked for a wait."""

    def __init__(self, why: str, wait_seconds: float | None = None) -> None:
        super().__init__(why)
        self.wait_seconds = wait_seconds


class Repository(NamedTuple):
    """A commit of a repository, and its files. ``name`` is the path of the repository in addresses."""

    endpoint: str
    name: str
    commit: str
    entries: tuple[Entry, ...]

    @property
    def bytes(self) -> int:
        """The total size of all files."""
        return sum(entry.bytes for entry in self.entries)

    def address(self, path: str) -> str:
        """Return the address of the file at ``path``."""
        return f"{self.endpoint}/{self.name}/resolve/{self.commit}/{quote(path)}"


def parse_repository(data: bytes) -> Repository:
    """Return the repository that a listing describes. Raises BadListing."""
    entries, document = parse_listing(data, LIMITS)
    fields = [document.get(name) for name in ("endpoint", "name", "commit")]
    endpoint, name, commit = (field if isinstance(field, str) else "" for field in fields)
    if not endpoint.startswith(("http://", "https://")) or not name or not commit:
        raise BadListing("its listing names no repository")
    return Repository(endpoint, name, commit, entries)


def fetch_repository(
    transport: Transport, prefix: str, target: Path, report: Progress = lambda _done, _all: None, token: str = ""
) -> Repository:
    """Download the repository listed at ``prefix`` into ``target``. Raises HubDenied, and see ``fetch_tree``."""
    with staging_folder(target) as staging:
        repository = parse_repository(fetch_listing(transport, prefix, staging))
        if not is_whole(target, repository.entries):
            download_files(repository, target, staging, token, report)
    return repository


def download_files(repository: Repository, target: Path, staging: Path, token: str, report: Progress) -> None:
    """Download all files into ``target``, by way of ``staging``. Raises HubDenied, BadListing, OSError."""
    done, total = 0, repository.bytes

    def write_file(entry: Entry, path: Path) -> None:
        nonlocal done
        address = repository.address(entry.path)
        for is_last_try in (False, True):
            _download(address, path, entry.bytes, token, lambda written: report(done + written, total))
            if _digest(path, entry) == entry.content:
                break
            path.unlink()
            if is_last_try:
                raise BadListing(f"{entry.path!a} does not have the digest that was pinned")
        done += entry.bytes
        report(done, total)

    build_tree(target, staging, repository.entries, write_file)


def get(
    address: str,
    token: str,
    read: Callable[[HTTPResponse], _Answer],
    start: int = 0,
    end: int = 0,
    seconds: float = _ANSWER_SECONDS,
) -> _Answer:
    """Request an object from byte ``start`` to byte ``end`` (0: to its end), and return ``read(answer)``.

    ``seconds`` is the deadline for each address, also of redirects.

    Raises HubDenied, FileNotFoundError, TemporaryFailure, and OSError for other answers.
    """
    first = urlsplit(address)
    location = address
    for _ in range(_REDIRECTS_MAX):
        parts = urlsplit(location)
        if parts.scheme not in {"http", "https"} or (first.scheme == "https" and parts.scheme != "https"):
            raise OSError(f"{address} redirects to {parts.scheme}://{parts.netloc}, which is not safe")
        at_hub = (parts.scheme, parts.netloc) == (first.scheme, first.netloc)
        headers = {"User-Agent": "uff-scheduler", "Accept-Encoding": "identity"}
        if start or end:
            headers["Range"] = f"bytes={start}-{end or ''}"
        if token and at_hub:
            headers["Authorization"] = f"Bearer {token}"
        try:
            request = urllib.request.Request(location, headers=headers)  # noqa: S310 - the scheme was checked
            with Deadline(seconds) as deadline, opener(deadline).open(request, timeout=_SILENCE_SECONDS) as answer:
                return read(answer)
        except urllib.error.HTTPError as error:
            with error:
                redirect = error.headers.get("Location")
                wait = error.headers.get("Retry-After", "")
            if error.code in {301, 302, 303, 307, 308} and redirect:
                location = urljoin(location, redirect)
                continue
            raise _error_for(address, error.code, wait, at_hub=at_hub) from None
        except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
            raise TemporaryFailure(f"no answer: {error}") from None
    raise OSError(f"{address} redirects more than {_REDIRECTS_MAX} times")


def retry(address: str, work: Callable[[], _Answer], advanced: Callable[[], bool] = lambda: False) -> _Answer:
    """Return ``work()``, retried after TemporaryFailure, for longer if it ``advanced``. Raises ConnectionError."""
    tries, waited = 0, 0.0
    while True:
        try:
            return work()
        except TemporaryFailure as error:
            tries, waited = (1, 0.0) if advanced() else (tries + 1, waited)
            if tries >= _TRIES or waited >= _PATIENCE_SECONDS:
                raise ConnectionError(f"{address}: {error}, {tries} times") from None
            wait = 0.5 * 2**tries if error.wait_seconds is None else error.wait_seconds
            waited += min(wait, _WAIT_SECONDS_MAX)
            threading.Event().wait(min(wait, _WAIT_SECONDS_MAX))


def _download(address: str, path: Path, size: int, token: str, report: Callable[[int], None]) -> None:
    """Download a file, resuming a partial download. Raises HubDenied, FileNotFoundError, OSError."""
    furthest, began = 0, 0.0

    def advanced() -> bool:
        nonlocal furthest
        before, furthest = furthest, max(furthest, _size(path))
        return furthest - before >= _SLOWEST_BYTES * max(1.0, stopwatch() - began)

    def continue_download() -> None:
        nonlocal began
        began = stopwatch()
        _continue(address, path, size, token, report)

    path.touch()
    furthest = _size(path)
    if furthest > size:
        path.write_bytes(b"")
    while _size(path) < size:
        retry(address, continue_download, advanced)


def _continue(address: str, path: Path, size: int, token: str, report: Callable[[int], None]) -> None:
    """Download what is missing of a file, in one request."""
    present = _size(path)

    def write(answer: HTTPResponse) -> None:
        start = _start(answer, present, size)
        with path.open("r+b") as sink:
            sink.truncate(start)
            sink.seek(start)
            _copy(answer, sink, start, size, report)

    get(address, token, write, start=present, seconds=_PIECE_SECONDS)


def _start(answer: HTTPResponse, present: int, size: int) -> int:
    """Return the offset in the file at which an answer starts. Raises TemporaryFailure if it is of another file."""
    if answer.status == 206:
        content_range = answer.headers.get("Content-Range", "")
        begin, _, total = content_range.removeprefix("bytes ").partition("/")
        if begin.partition("-")[0] != str(present) or total not in {str(size), "*"}:
            raise TemporaryFailure(f"byte {present} of {size} was requested, and {content_range!a} came")
        return present
    length = answer.headers.get("Content-Length")
    if length is not None and length != str(size):
        raise TemporaryFailure(f"{size} bytes were pinned, and {length} are offered")
    return 0  # the server does not resume: it sends the whole file


def _copy(answer: HTTPResponse, sink: BinaryIO, position: int, size: int, report: Callable[[int], None]) -> None:
    while piece := answer.read(min(_READ_BYTES, size - position + 1)):
        if position + len(piece) > size:
            sink.truncate(0)
            raise TemporaryFailure(f"more than the {size} bytes that were pinned came")
        sink.write(piece)
        position += len(piece)
        report(position)
    if position < size:
        raise TemporaryFailure(f"it broke off at byte {position} of {size}")


def _error_for(address: str, code: int, wait: str, *, at_hub: bool) -> Exception:
    """Return the exception for an HTTP status; ``wait`` is the header Retry-After."""
    if code == 429 or code >= 500:
        return TemporaryFailure(f"the Hub answers {code}", digits(wait, SPAN_MAX))
    if not at_hub:
        return TemporaryFailure(f"the address that the Hub gave answers {code}; it may have expired", 0.0)
    if code in {401, 403}:
        return HubDenied(address, code)
    if code == 404:
        return FileNotFoundError(f"{address} does not exist")
    return OSError(f"{address} answers {code}")


def _digest(path: Path, entry: Entry) -> str:
    if not entry.content.startswith(GIT):
        return sha256_file(path)
    hasher = hashlib.sha1(b"blob %d\0" % entry.bytes, usedforsecurity=False)  # git names a file by this header too
    with path.open("rb") as stream:
        return f"{GIT}{hashlib.file_digest(stream, lambda: hasher).hexdigest()}"


def _size(path: Path) -> int:
    return path.stat().st_size
