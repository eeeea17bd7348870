"""Kaggle's own client library under our terms: our credentials, a deadline and a size limit on every exchange."""

from __future__ import annotations

import json
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

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


def _bounded(seconds: int) -> Any:
    """Return a transport that ends every exchange in time and before it fills the memory."""
    from requests.adapters import HTTPAdapter
    from requests.exceptions import HTTPError

    class Bounded(HTTPAdapter):
        def send(self, request: Any, *arguments: Any, **options: Any) -> Any:
            streamed = bool(options.get("stream"))
            options["timeout"] = options.get("timeout") or (CONNECT_SECONDS, seconds)
            response = super().send(request, *arguments, **{**options, "stream": True})
            if streamed:
                return response
            ends_at = stopwatch() + seconds  # what was sent may have been a large file
            body = bytearray()
            for piece in response.iter_content(PIECE_BYTES):
                body += piece
                if len(body) > _ANSWER_BYTES_MAX:
                    response.close()
                    raise AnswerTooLarge(f"the answer is larger than {_ANSWER_BYTES_MAX} bytes")
                if stopwatch() > ends_at:
                    response.close()
                    raise TimeoutError(f"the answer is too slow ({len(body)} bytes)")
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
