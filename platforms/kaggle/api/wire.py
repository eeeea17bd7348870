"""HTTP to Kaggle: a deadline and a size limit on everything, answers sorted into what can be concluded from them."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from jobs.payload.bounds import SPAN_MAX, digits
from jobs.payload.clock import stopwatch
from jobs.payload.deadline import Deadline, header_date
from platforms.base import Misconfigured, Unreachable
from platforms.kaggle.api.answers import Answer, NoAnswer
from platforms.kaggle.settings import Credentials

if TYPE_CHECKING:
    import requests

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
_Result = TypeVar("_Result")
_MESSAGE_CHARACTERS = 300
_DOWNLOAD_TRIES = 5  # without a byte of progress
_RATE_MIN = 10_000  # bytes a second
_REDIRECTS = 5  # from a signed address to where the file lies
TOO_LARGE = 413  # also for what we do not take
_TIMED_OUT = 408  # said by whatever stands between, which cannot know what was done


# Kaggle's own client library under our terms: our credentials, a deadline and a size limit on every exchange.
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
    ``emulator`` is the address of an emulator, used as a proxy; None: the environment decides, as for the library.
    """
    from kagglesdk.kaggle_env import KaggleEnv
    from kagglesdk.kaggle_http_client import KaggleHttpClient

    class WireClient(KaggleHttpClient):  # type: ignore[misc]
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

    return WireClient(
        env=KaggleEnv.LOCAL if emulator else None, verbose=False, user_agent="uff-scheduler", response_processor=heard
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
        """Return the next bytes; a caller that waits for the whole goes on waiting."""
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
                            raise TooLarge(f"the answer is larger than {_ANSWER_BYTES_MAX} bytes")
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


class Denied(Exception):
    """An answer that says no, with its HTTP status: 400, 403, 404 and their like. Nothing was changed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status
        self.missing = status in {403, 404}  # Kaggle does not tell "not there" from "not yours"


class TooLarge(Denied):
    """What comes is more than we take; asking again cannot help. Of what was done it tells nothing."""

    def __init__(self, message: str) -> None:
        super().__init__(TOO_LARGE, message)


class Throttled(Unreachable):
    """Too many calls; ``wait_seconds`` is what Kaggle asks for, 0 when it does not say."""

    def __init__(self, action: str, why: str, wait_seconds: float) -> None:
        super().__init__("kaggle", action, why)
        self.wait_seconds = wait_seconds


class Wire:
    """Calls Kaggle with the wire types of kagglesdk. Keeps no connection, so any thread may use it at any time.

    ``emulator`` is the address of an emulator that is used as a proxy; empty means the real place.
    """

    def __init__(self, credentials: Credentials, emulator: str, call_seconds: int) -> None:
        self._credentials = credentials
        self._emulator = emulator
        self._call_seconds = call_seconds
        self.clock_shown: float | None = None  # what Kaggle's clock showed in its last answer, UTC seconds

    def call(
        self,
        service: str,
        name: str,
        fields: Mapping[str, Any],
        read: Callable[[Answer], _Result],
        seconds: int | None = None,
    ) -> _Result:
        """Make one remote call with the ``fields`` of its request, and return what ``read`` makes of its answer.

        Raises Denied for a no, Unreachable when nothing can be concluded, as from a body that lacks what ``read``
        needs, and Misconfigured when we are not let in.
        """
        from requests.exceptions import HTTPError, RequestException

        seconds = seconds or self._call_seconds
        try:
            with self._client(seconds) as client:
                return read(client.call(service, name, request_of(service, name, fields), _Body))
        except HTTPError as error:
            raise self._sorted(name, error) from None
        except NoAnswer as error:
            raise Unreachable("kaggle", name, f"the answer is none: {error}") from None
        except (RequestException, TimeoutError) as error:
            raise Unreachable("kaggle", name, _reason(error)) from None
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            # The library looks into a body before we do: HTML where JSON was due, a list, a null.
            raise Unreachable("kaggle", name, f"the answer makes no sense: {_reason(error)}") from None

    def location(self, service: str, name: str, fields: Mapping[str, Any]) -> str:
        """Make a call that is answered by another address, and return that. Raises as ``call``."""
        from requests.exceptions import RequestException, TooManyRedirects

        try:
            with self._client(self._call_seconds) as client:
                client.call(service, name, request_of(service, name, fields), None)
        except TooManyRedirects as error:  # the client follows none
            address = "" if error.response is None else str(error.response.headers.get("Location", ""))
            if address.startswith(("https://", "http://")):
                return address
        except RequestException as error:
            raise self._sorted(name, error) from None
        raise Unreachable("kaggle", name, "the answer names no address to fetch it from")

    def stream(self, path: str, idle_seconds: float, limit_bytes: int) -> Iterator[tuple[str, bytes]]:
        """GET ``path`` below the API and yield (content type, piece) until it ends, breaks, idles or is too long."""
        from requests.exceptions import RequestException

        opened = False
        with self._client(self._call_seconds) as client:
            session = client.session
            url = client.url(path)
            headers = {"Accept": "text/event-stream"}
            try:
                with session.get(
                    url, headers=headers, stream=True, timeout=(CONNECT_SECONDS, idle_seconds)
                ) as response:
                    response.raise_for_status()
                    opened, kind = True, response.headers.get("Content-Type", "")
                    for piece in response.raw.stream(PIECE_BYTES, decode_content=True):
                        yield kind, piece
                        limit_bytes -= len(piece)
                        if limit_bytes <= 0:
                            return
            except RequestException as error:
                raise self._sorted("read the log", error) from None
            except Exception as error:
                from urllib3.exceptions import HTTPError, ReadTimeoutError

                if isinstance(error, ReadTimeoutError) or (opened and isinstance(error, HTTPError)):
                    return  # a session that says nothing, or a balancer that has waited long enough
                if isinstance(error, HTTPError):
                    raise Unreachable("kaggle", "read the log", _reason(error)) from None
                raise

    def download(self, url: str, target: Path, limit_bytes: int, seconds: float) -> None:
        """GET a signed address, without credentials, into the new file ``target``.

        It may take any time while it goes on: what breaks off is resumed, ``seconds`` bound a silence and what comes
        slower than _RATE_MIN is given up. Raises OSError from the local disk, Denied (also for a file above
        ``limit_bytes``), Unreachable.
        """
        from requests.exceptions import RequestException
        from urllib3.exceptions import HTTPError

        with target.open("xb") as sink:
            tries = _DOWNLOAD_TRIES
            while True:
                had = sink.tell()
                try:
                    self._receive(url, sink, limit_bytes, seconds)
                except (RequestException, HTTPError) as error:
                    tries = _DOWNLOAD_TRIES if sink.tell() > had else tries - 1
                    if tries <= 0:
                        raise Unreachable("kaggle", "download", _reason(error)) from None
                else:
                    return

    def _receive(self, url: str, sink: BinaryIO, limit_bytes: int, seconds: float) -> None:
        """Append what ``sink`` lacks, in one exchange."""
        with self._client(self._call_seconds) as client:
            session = client.session
            session.auth, session.max_redirects = None, _REDIRECTS
            headers = {"Range": f"bytes={sink.tell()}-"} if sink.tell() else {}
            began, had = stopwatch(), sink.tell()
            with session.get(url, headers=headers, stream=True, timeout=(CONNECT_SECONDS, seconds)) as response:
                if response.status_code >= 400:
                    raise Denied(response.status_code, "the output file is not handed out")
                if had and response.status_code != 206:
                    had = sink.seek(0)
                    sink.truncate()
                # Pieces as they come: what is waited for is lost when the connection breaks.
                while piece := response.raw.read1(PIECE_BYTES, decode_content=True):
                    sink.write(piece)
                    if sink.tell() > limit_bytes:
                        raise TooLarge(f"the output file is larger than {limit_bytes} bytes")
                    if stopwatch() - began > seconds + (sink.tell() - had) / _RATE_MIN:
                        raise Unreachable("kaggle", "download", f"slower than {_RATE_MIN} bytes a second")

    def put(
        self, url: str, source: Path, first: int | None, seconds: int, advanced: Callable[[int], object]
    ) -> tuple[int, str]:
        """PUT the file to a signed address, from byte ``first`` on, or ask how far it has come (None).

        ``advanced`` is called with how many bytes are out. The file may take any time, but not pause: a connection that
        takes no byte for CONNECT_SECONDS, or gives no answer for ``seconds`` after the last one, is given up.
        Returns the status and its Range header. Raises OSError, Unreachable.
        """
        from requests.exceptions import RequestException

        size = source.stat().st_size
        headers = {"Content-Type": "application/octet-stream"}
        if first is None:
            headers["Content-Range"] = f"bytes */{size}"
        elif first > 0:
            headers["Content-Range"] = f"bytes {first}-{size - 1}/{size}"
        with self._client(seconds) as client, source.open("rb") as stream:
            session = client.session
            session.auth = None
            body = b"" if first is None else Rest(stream, first, size, advanced)
            try:
                response = session.put(url, data=body, headers=headers)
            except (RequestException, TimeoutError) as error:
                raise Unreachable("kaggle", "upload", _reason(error)) from None
            return response.status_code, str(response.headers.get("Range", ""))

    def _client(self, seconds: int) -> Any:
        return open_client(self._credentials, self._emulator, seconds, self._note_clock)

    def _note_clock(self, response: requests.Response) -> None:
        self.clock_shown = header_date(response.headers.get("Date")) or self.clock_shown

    def _sorted(self, name: str, error: requests.exceptions.RequestException) -> Exception:
        response = error.response
        if response is None:
            return Unreachable("kaggle", name, _reason(error))
        status, message = _refusal_of(response)
        if status == 401:
            return Misconfigured(
                "kaggle", name, f"the credentials from {self._credentials.origin} are refused", "Make new ones"
            )
        if status == 429:
            wait_seconds = digits(response.headers.get("Retry-After"), SPAN_MAX)
            return Throttled(name, f"HTTP 429: {message}", float(wait_seconds or 0))
        if status >= 500 or status < 400 or status == _TIMED_OUT:  # to be sent elsewhere is no refusal
            return Unreachable("kaggle", name, f"HTTP {status}: {message}")
        return Denied(status, message)


class _Body:
    """Stands where Kaggle's library has its own type of an answer: the body is read by us."""

    @staticmethod
    def prepare_from(response: requests.Response) -> Answer:
        """Return the answer. Raises NoAnswer, also for what says by its code that it is an error."""
        answer = Answer.parse(response.content)
        if answer.number("code") >= 400:  # with a message it would have been raised as such before
            raise NoAnswer("it has an error's code, and no message")
        return answer


def plain(text: object) -> str:
    """Return what a server says of itself as one short line without control characters, fit to be kept and shown."""
    return "".join(c if c.isprintable() else " " for c in str(text or "")[:_MESSAGE_CHARACTERS])


def _refusal_of(response: Any) -> tuple[int, str]:
    """Return the status and the message of a refusal; a body may name a worse status than its HTTP line."""
    try:
        body = response.json()
        status, message = int(body["code"]), str(body["message"])
    except (ValueError, KeyError, TypeError):
        return int(response.status_code), plain(response.reason)
    return max(status, int(response.status_code)), plain(message)


def _reason(error: BaseException) -> str:
    """Name an error without what it may quote: addresses of ours are signed, bodies may be anything."""
    from requests.exceptions import ConnectionError as Broken
    from requests.exceptions import Timeout

    name = type(error).__name__
    if isinstance(error, TimeoutError):
        return plain(f"{name}: {error}")
    if isinstance(error, Timeout):
        return f"no answer in time ({name})"
    return f"there is no connection, or it was closed ({name})" if isinstance(error, Broken) else name
