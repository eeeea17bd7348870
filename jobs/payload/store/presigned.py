"""A store behind presigned URLs: read by GET, write by POST, within the keys and prefixes that the daemon signed.

A POST cannot be conditional, so it replaces an existing object. This is harmless: components are named by their
content, which the server verifies, and manifests and reports by the attempt that writes them, which is unique.
"""

import base64
import hashlib
import io
import os
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from ..deadline import Deadline, opener
from .manifest import sha256_file
from .transport import PIECE_BYTES, pour

_Answer = TypeVar("_Answer")

_SILENCE_SECONDS = 30.0  # longest time without a byte from the server
_PIECE_SECONDS = 120.0  # longest time for the head of an answer, and for each piece of a long body
_PAUSES = (0.2, 1.0, 3.0)  # wall seconds before each retry
_DOCUMENT_BYTES_MAX = 16 << 20
_ANSWER_BYTES = 1000  # bytes of an error message that are quoted
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})


class Post(NamedTuple):
    """The right to write keys that start with ``below``; ``prefix`` is put before the key in the bucket."""

    below: str
    url: str
    prefix: str
    fields: Mapping[str, str]


class PresignedTransport:
    """A Transport over presigned URLs; ``cache`` is a local folder for downloaded folders."""

    def __init__(self, address: Mapping[str, Any], cache: Path) -> None:
        """Raises KeyError and TypeError for an invalid address."""
        self._gets = {str(key): str(url) for key, url in address["gets"].items()}
        self._posts = [Post(**entry) for entry in address["posts"]]
        self._folders: Mapping[str, Mapping[str, str]] = address["folders"]
        self._cache = cache

    def read(self, key: str) -> bytes:
        """See Transport."""
        return self._get(self._url(key), key, lambda answer, _: answer.read(_DOCUMENT_BYTES_MAX))

    def fetch(self, key: str, target: Path) -> str:
        """See Transport."""
        return self._download(self._url(key), key, target)

    def publish_new(self, key: str, source: Path | bytes) -> bool:
        """See Transport. Without a right to read the key, an existing object is replaced."""
        if key in self._gets and self.exists(key):
            return False
        self.put(key, source)
        return True

    def put(self, key: str, source: Path | bytes, *, durable: bool = True) -> None:
        """See Transport. The server answers when the object is durable."""
        del durable
        post = next((post for post in self._posts if key.startswith(post.below)), None)
        if post is None:
            raise PermissionError(f"{key}: this session has no right to write it")
        digest = hashlib.sha256(source).hexdigest() if isinstance(source, bytes) else sha256_file(source)
        checksum = base64.b64encode(bytes.fromhex(digest)).decode()
        form = _Form({**post.fields, "key": post.prefix + key, "x-amz-checksum-sha256": checksum}, source)
        headers = {"Content-Type": form.content_type, "Content-Length": str(form.length)}
        _send(
            key,
            lambda deadline: urllib.request.Request(  # noqa: S310 - the daemon signed it
                post.url, data=form.pieces(deadline), headers=headers, method="POST"
            ),
            lambda answer, _: answer.read(_ANSWER_BYTES),
        )

    def exists(self, key: str) -> bool:
        """See Transport. Raises PermissionError without a right to read it."""
        try:
            # The URL is signed for GET, so HEAD would be refused.
            self._get(self._url(key), key, lambda answer, _: answer.read(1), {"Range": "bytes=0-0"})
        except FileNotFoundError:
            return False
        except EmptyObject:
            return True
        return True

    def verify(self, key: str, sha256: str) -> bool:
        """See Transport. Objects that cannot be read count as not verified."""
        if key not in self._gets:
            return False
        with suppress(FileNotFoundError):
            return self._get(self._url(key), key, lambda *answer: pour(_pieces(*answer))) == sha256
        return False

    def folder(self, prefix: str) -> Path:
        """See Transport. The objects are downloaded once, unless several lanes call this at the same time."""
        if prefix not in self._folders:
            raise FileNotFoundError(f"{prefix}: this session has no right to read this folder")
        target = self._cache / hashlib.sha256(prefix.encode()).hexdigest()[:16]
        if target.is_dir():
            return target
        fresh = target.with_name(f"{target.name}.{os.urandom(6).hex()}")
        try:
            for name, url in self._folders[prefix].items():
                path = fresh / name
                path.parent.mkdir(parents=True, exist_ok=True)
                self._download(url, f"{prefix}/{name}", path)
            with suppress(OSError):  # if another lane was first, its copy is used
                fresh.rename(target)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        if not target.is_dir():
            raise FileNotFoundError(f"{prefix} is empty")
        return target

    def _url(self, key: str) -> str:
        prefix, _, name = key.rpartition("/")
        url = self._gets.get(key) or self._folders.get(prefix, {}).get(name)
        if url is None:
            raise PermissionError(f"{key}: this session has no right to read it")
        return url

    def _download(self, url: str, key: str, target: Path) -> str:
        def write(answer: HTTPResponse, deadline: Deadline) -> str:
            with target.open("wb") as sink:
                return pour(_pieces(answer, deadline), sink)

        return self._get(url, key, write)

    @staticmethod
    def _get(
        url: str, key: str, read: Callable[[HTTPResponse, Deadline], _Answer], headers: Mapping[str, str] | None = None
    ) -> _Answer:
        return _send(key, lambda _: urllib.request.Request(url, headers=dict(headers or {})), read)  # noqa: S310


class EmptyObject(OSError):
    """The object exists, but is empty."""


class _Form:
    """A multipart form that ends with a file, which each try streams again, so that it is never in memory."""

    def __init__(self, fields: Mapping[str, str], source: Path | bytes) -> None:
        boundary = os.urandom(16).hex()
        self.content_type = f"multipart/form-data; boundary={boundary}"
        parts = [
            f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'
            for name, text in fields.items()
        ]
        last = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="object"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        )
        self._head = ("".join(parts) + last).encode()
        self._tail = f"\r\n--{boundary}--\r\n".encode()
        self._source = source
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        self.length = len(self._head) + size + len(self._tail)

    def pieces(self, deadline: Deadline) -> Iterator[bytes]:
        """Yield the bytes of the form; the deadline applies to each piece."""
        yield self._head
        with io.BytesIO(self._source) if isinstance(self._source, bytes) else self._source.open("rb") as stream:
            yield from _pieces(stream, deadline)
        yield self._tail


def _pieces(source: HTTPResponse | IO[bytes], deadline: Deadline) -> Iterator[bytes]:
    """Yield pieces of a stream; the deadline is renewed for each piece."""
    while piece := source.read(PIECE_BYTES):
        deadline.renew()
        yield piece


def _send(
    key: str, request: Callable[[Deadline], urllib.request.Request], read: Callable[[HTTPResponse, Deadline], _Answer]
) -> _Answer:
    """Return ``read(answer, deadline)``, after retries of temporary failures. Raises OSError, see Transport."""
    for pause in _PAUSES:
        try:
            return _send_once(key, request, read)
        except ConnectionError:
            threading.Event().wait(pause)
    return _send_once(key, request, read)


def _send_once(
    key: str, request: Callable[[Deadline], urllib.request.Request], read: Callable[[HTTPResponse, Deadline], _Answer]
) -> _Answer:
    try:
        with Deadline(_PIECE_SECONDS) as deadline:
            try:
                with opener(deadline).open(request(deadline), timeout=_SILENCE_SECONDS) as answer:
                    received = read(answer, deadline)
                    if answer.length:
                        raise ConnectionError(f"{key}: the answer was cut off, {answer.length} bytes are missing")
                    return received
            except urllib.error.HTTPError as error:
                with error:
                    body = error.read(_ANSWER_BYTES).decode(errors="replace")
                raise _refusal(key, error.code, body) from None
    except (urllib.error.URLError, TimeoutError, HTTPException) as error:
        raise ConnectionError(f"{key}: no answer from the store: {error}") from None


def _refusal(key: str, code: int, body: str) -> OSError:
    """Return the exception for an HTTP status."""
    if code == 404:
        return FileNotFoundError(f"{key} is not in the store")
    if code == 416:
        return EmptyObject(f"{key} is empty")
    if code in _TRANSIENT:
        return ConnectionError(f"{key}: the store answers {code}")
    if code in {401, 403}:
        return PermissionError(f"{key}: the store refuses ({code}); the session's rights may have expired")
    return OSError(f"{key}: the store answers {code}: {body}")
