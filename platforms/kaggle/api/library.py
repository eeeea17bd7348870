"""Kaggle's own client library under our terms: our credentials, a deadline and a size limit on every exchange."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, BinaryIO

from jobs.payload.deadline import Deadline
from platforms.kaggle.api.credentials import Credentials

CONNECT_SECONDS = 10
_IMPORTING = threading.Lock()
_MODULES = (
    "kagglesdk.kaggle_http_client",
    "kagglesdk.kernels.types.kernels_api_service",
    "kagglesdk.datasets.types.dataset_api_service",
    "kagglesdk.blobs.types.blob_api_service",
    "kagglesdk.models.types.model_api_service",
    "kagglesdk.security.types.oauth_service",
)
PIECE_BYTES = 1 << 16
_ANSWER_BYTES_MAX = 64 << 20  # a finished session's log comes inside an answer


class AnswerTooLarge(Exception):
    """An answer would not fit into what we give it of the memory; asking again cannot help."""


def import_library() -> None:
    """Import every part of the library that is used.

    Its modules import each other in circles: threads that meet in there for the first time fail with a deadlock.
    Raises ImportError.
    """
    with _IMPORTING:
        for name in _MODULES:
            import_module(name)


def request_of(service: str, name: str, fields: Mapping[str, Any]) -> Any:
    """Return the library's own request for a call of a service (``kernels.KernelsApiService``), with these fields."""
    package, _, label = service.partition(".")
    module = "".join(f"_{part.lower()}" for part in re.findall("[A-Z][a-z]+", label.replace("OAuth", "Oauth")))
    types = import_module(f"kagglesdk.{package}.types.{module[1:]}")
    request = (getattr(types, f"Api{name}Request", None) or getattr(types, f"{name}Request"))()
    for field, value in fields.items():
        setattr(request, field, value)
    return request


def open_client(credentials: Credentials, emulator: str, seconds: int, heard: Callable[[Any], None]) -> Any:
    """Return a client to be used in a ``with`` block; it has ``call``, ``session`` and ``url``.

    ``heard`` is given every good answer.
    ``emulator`` is the address of a stand-in, used as a proxy; without one the environment decides, as for the library.
    """
    from kagglesdk.kaggle_env import KaggleEnv
    from kagglesdk.kaggle_http_client import KaggleHttpClient

    class Client(KaggleHttpClient):  # type: ignore[misc]
        """The library's client, which by itself has no deadline and takes whatever credentials lie around."""

        def _init_session(self) -> None:
            if self._session is not None:
                return
            super()._init_session()
            self.session.max_redirects = 0  # a redirected call would arrive as a GET
            for scheme in ("http://", "https://"):
                self.session.mount(scheme, _bounded(seconds))
            if emulator:
                self.session.trust_env = False
                self.session.proxies = {"http": emulator, "https": emulator}

        def _try_fill_auth(self) -> None:
            bearer = KaggleHttpClient.BearerAuth
            legacy = (credentials.username, credentials.key)
            self._session.auth = bearer(credentials.token) if credentials.token else legacy
            self._signed_in = True

        @property
        def session(self) -> Any:
            return self._session

        def url(self, path: str) -> str:
            base = self._endpoint if self._env == KaggleEnv.PROD else f"{self._endpoint}/api"
            return f"{base}/v1/{path}"

    return Client(
        env=KaggleEnv.LOCAL if emulator else None,
        verbose=False,
        user_agent="uff-scheduler",
        response_processor=heard,
    )


class Rest:
    """A file from a byte on, for a request's body; tells how far it has been read."""

    def __init__(self, stream: BinaryIO, first: int, size: int, advanced: Callable[[int], object]) -> None:
        stream.seek(first)
        self._stream = stream
        self._size = size
        self._advanced = advanced
        self.renew: Callable[[], object] = lambda: None

    def __len__(self) -> int:
        return self._size - self._stream.tell()

    def __iter__(self) -> Iterator[bytes]:
        while piece := self.read(PIECE_BYTES):
            yield piece

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; whoever waits for the whole goes on waiting."""
        piece = self._stream.read(size)
        self._advanced(self._stream.tell())
        self.renew()
        return piece


def _bounded(seconds: int) -> Any:
    """Return a transport that ends every exchange in time and before it fills the memory.

    A ``Rest`` may take any time while it goes on, and so may a streamed answer once its head is here.
    """
    from requests.adapters import HTTPAdapter
    from requests.exceptions import HTTPError, ReadTimeout

    class Bounded(HTTPAdapter):
        deadline = Deadline(0)

        def get_connection_with_tls_context(self, *arguments: Any, **options: Any) -> Any:
            pool: Any = super().get_connection_with_tls_context(*arguments, **options)
            kind = pool.ConnectionCls
            pool.ConnectionCls = lambda *words, **more: self._followed(kind(*words, **more))
            return pool

        def _followed(self, connection: Any) -> Any:
            create = connection._new_conn  # noqa: SLF001 - urllib3's own name for what opens a socket
            connection._new_conn = lambda: self.deadline.watch(create())  # noqa: SLF001 - see above
            return connection

        def send(self, request: Any, *arguments: Any, **options: Any) -> Any:
            options["timeout"] = options.get("timeout") or (CONNECT_SECONDS, seconds)
            streamed = bool(options.get("stream"))
            self.close()  # a connection of an earlier exchange is not watched in this one
            try:
                with Deadline(sum(options["timeout"])) as self.deadline:
                    if isinstance(request.body, Rest):
                        request.body.renew = self.deadline.renew
                    response = super().send(request, *arguments, **{**options, "stream": True})
                    if streamed:
                        return response
                    body = bytearray()
                    for piece in response.iter_content(PIECE_BYTES):
                        body += piece
                        if len(body) > _ANSWER_BYTES_MAX:
                            response.close()
                            raise AnswerTooLarge(f"the answer is larger than {_ANSWER_BYTES_MAX} bytes")
            except TimeoutError as error:
                raise ReadTimeout(str(error), request=request) from error
            response._content = bytes(body)  # noqa: SLF001 - what reading .content would have set
            if response.status_code >= 400 and request.method == "POST" and not _is_json(body):
                # The library would fail over the page that it takes for JSON, and hide a 429.
                raise HTTPError(f"HTTP {response.status_code}", response=response)
            return response

    return Bounded()


def _is_json(body: bytes | bytearray) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def stopwatch() -> float:
    """Return monotonic real seconds: the deadline of a call has nothing to do with scheduled time."""
    return time.monotonic()  # noqa: TID251 - see above
