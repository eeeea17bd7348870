"""HTTP to Kaggle: each exchange has a timeout and a size limit, and each answer is classified by what it proves."""

import json
import math
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar

from jobs.payload.bounds import SPAN_MAX, digits
from jobs.payload.clock import stopwatch
from jobs.payload.deadline import Deadline, header_date
from platforms.base import Misconfigured, Unreachable
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
_ANSWER_BYTES_MAX = 64 << 20  # an ended session's log is part of an answer
_Result = TypeVar("_Result")
_MESSAGE_CHARACTERS = 300
_DOWNLOAD_TRIES = 5  # attempts in a row without progress
_RATE_MIN = 10_000  # bytes per second
_REDIRECTS = 5  # redirects from a signed address to the file
TOO_LARGE = 413
_TIMED_OUT = 408  # the status of a proxy, which cannot know whether the call took effect
_NUMBER_MAX = 2**63 - 1
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)s", re.ASCII)
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(?:Z|\+00:00)?", re.ASCII)
_EARLIEST = datetime(2015, 1, 1, tzinfo=UTC).timestamp()


# Validation of answers. A body without its expected fields counts as no answer, even with status 200.
#
# Kaggle's library replaces a missing field by its default, and a truncated enum word by the first word with that
# ending, so it would turn a truncated answer into a state. Here a wrong field in the JSON is an error.
class NoAnswer(ValueError):
    """A body lacks a required field or has a wrong type; the message names the field, without its content."""


class Answer:
    """The JSON object of an answer, or an object within it. Its methods read a field with its required type.

    Null counts as a missing field. The methods raise NoAnswer for a value of another type.
    """

    def __init__(self, document: Any) -> None:
        if not isinstance(document, dict):
            raise NoAnswer("it is not an object")
        self._fields: dict[str, Any] = document

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Parse an answer's body. Raises NoAnswer."""
        try:
            value = json.loads(data, object_pairs_hook=_object, parse_constant=_refuse_constant)
        except NoAnswer:
            raise
        except (ValueError, RecursionError):
            raise NoAnswer("it is not JSON, or is incomplete") from None
        return cls(value)

    def is_empty(self) -> bool:
        """Return whether the object has no fields."""
        return not self._fields

    def text(self, name: str) -> str:
        """Return a text; "" if it is missing."""
        return self._of(name, str) or ""

    def needed_text(self, name: str) -> str:
        """Return a required text."""
        return self.text(name) or self._fail_missing(name)

    def flag(self, name: str) -> bool | None:
        """Return a boolean; None if it is missing."""
        value = self._of(name, bool)
        return None if value is None else bool(value)

    def number(self, name: str) -> int:
        """Return a non-negative integer, also if it is a JSON string; 0 if it is missing."""
        value = self._fields.get(name)
        if value is None:
            return 0
        if isinstance(value, str) and re.fullmatch(r"\d{1,19}", value, re.ASCII):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _NUMBER_MAX:
            raise NoAnswer(f"{name} is not a number")
        return value

    def word(self, name: str, kind: str, allowed: Collection[str]) -> str:
        """Return a field's ``allowed`` word, which Kaggle may spell in any style of its enumeration ``kind``."""
        text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.needed_text(name)).upper().removeprefix(f"{kind}_")
        if text not in allowed:
            raise NoAnswer(f"{name} is not a known word")
        return text

    def instant(self, name: str) -> float | None:
        """Return a time as UTC seconds; None if it is missing."""
        text = self.text(name)
        if not text:
            return None
        match = _INSTANT.fullmatch(text)
        try:
            seconds = datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp() if match else -math.inf
        except ValueError:
            seconds = -math.inf
        if match is None or seconds < _EARLIEST:
            raise NoAnswer(f"{name} is not a time")
        return seconds + float(match[2] or 0)

    def duration(self, name: str) -> float | None:
        """Return a non-negative duration in seconds; None if it is missing."""
        text = self.text(name)
        match = _DURATION.fullmatch(text)
        if text and match is None:
            raise NoAnswer(f"{name} is not a duration")
        return float(match[1]) if match else None

    def needed_part(self, name: str) -> "Answer":
        """Return a required nested object."""
        value = self._of(name, dict)
        return self._fail_missing(name) if value is None else Answer(value)

    def parts(self, name: str) -> "list[Answer] | None":
        """Return a list of objects; None if it is missing."""
        values = self._of(name, list)
        return None if values is None else [Answer(item) for item in values]

    def texts(self, name: str) -> list[str]:
        """Return a list of texts; empty if it is missing."""
        values = self._of(name, list) or []
        if not all(isinstance(item, str) for item in values):
            raise NoAnswer(f"{name} contains a value that is not a text")
        return values

    def raw(self, name: str) -> Any:
        """Return a field without validation."""
        return self._fields.get(name)

    def has(self, *names: str) -> bool:
        """Return whether at least one of these fields is present."""
        return any(self._fields.get(name) is not None for name in names)

    def _of(self, name: str, kind: type) -> Any:
        value = self._fields.get(name)
        if value is not None and not isinstance(value, kind):
            raise NoAnswer(f"{name} has another type")
        return value

    def _fail_missing(self, name: str) -> Any:
        raise NoAnswer(f"{name} is missing")


def has_no_error(answer: Answer) -> bool:
    """Return whether an answer reports success, which is an object without an error message."""
    return not answer.text("errorMessage")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise NoAnswer("a field appears twice")
    return result


def _refuse_constant(name: str) -> Any:
    raise NoAnswer(f"{name} is not a number")


# The wire types of Kaggle's library with our own transport: our credentials, a timeout and a size limit on every
# exchange. The library's own client has no timeout, and uses any credentials that it finds.
def import_library() -> None:
    """Import all modules of the library that we use. Raises ImportError.

    They import each other in cycles, so threads that import them at the same time for the first time would deadlock.
    """
    with _IMPORTING:
        for name in _MODULES:
            import_module(name)


def body_of(service: str, name: str, fields: Mapping[str, Any]) -> Any:
    """Return the request body that the library sends for a call of a service (``kernels.KernelsApiService``)."""
    package, _, label = service.partition(".")
    module = "".join(f"_{part.lower()}" for part in re.findall("[A-Z][a-z]+", label.replace("OAuth", "Oauth")))
    types = import_module(f"kagglesdk.{package}.types.{module[1:]}")
    request = (getattr(types, f"Api{name}Request", None) or getattr(types, f"{name}Request"))()
    for field, value in fields.items():
        setattr(request, field, value)
    return request.to_dict(request)


class FilePart:
    """A file from the byte ``first`` on, as a request's body; ``advanced`` gets the position after each read."""

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
        """Return the next bytes, and restart the time limit for a silence."""
        piece = self._stream.read(size)
        self._advanced(self._stream.tell())
        self.renew()
        return piece


def _bounded(seconds: int) -> Any:
    """Return a transport that limits the time and the size of every exchange.

    A request with a FilePart may last any time while it makes progress, and so may a streamed answer after its headers.
    """
    from requests.adapters import HTTPAdapter
    from requests.exceptions import ReadTimeout

    class Bounded(HTTPAdapter):
        deadline = Deadline(0)

        def get_connection_with_tls_context(self, *arguments: Any, **options: Any) -> Any:
            pool: Any = super().get_connection_with_tls_context(*arguments, **options)
            kind = pool.ConnectionCls
            pool.ConnectionCls = lambda *values, **options: self._watched(kind(*values, **options))
            return pool

        def _watched(self, connection: Any) -> Any:
            create = connection._new_conn  # noqa: SLF001 - urllib3's own name for what opens a socket
            connection._new_conn = lambda: self.deadline.watch(create())  # noqa: SLF001 - see above
            return connection

        def send(self, request: Any, *arguments: Any, **options: Any) -> Any:
            options["timeout"] = options.get("timeout") or (CONNECT_SECONDS, seconds)
            streamed = bool(options.get("stream"))
            self.close()  # a connection of an earlier exchange is not limited by this one
            try:
                with Deadline(sum(options["timeout"])) as self.deadline:
                    if isinstance(request.body, FilePart):
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
            response._content = bytes(body)  # noqa: SLF001 - as reading .content would have set it
            return response

    return Bounded()


class Denied(Exception):
    """Kaggle rejected the call, with its HTTP status (400, 403, 404 and similar). Nothing was changed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status
        self.missing = status in {403, 404}  # Kaggle does not distinguish "missing" from "not yours"


class TooLarge(Denied):
    """The answer exceeds our size limit; a retry cannot help. It does not show whether the call took effect."""

    def __init__(self, message: str) -> None:
        super().__init__(TOO_LARGE, message)


class Throttled(Unreachable):
    """Too many calls; ``wait_seconds`` is the pause that Kaggle requests, 0 if unknown."""

    def __init__(self, action: str, why: str, wait_seconds: float) -> None:
        super().__init__("kaggle", action, why)
        self.wait_seconds = wait_seconds


class Wire:
    """Calls Kaggle with the wire types of kagglesdk. Keeps no connection, so any thread may use it at any time.

    ``emulator`` is the address of an emulator that is used as a proxy; empty means the real Kaggle.
    """

    def __init__(self, credentials: Credentials, emulator: str, call_seconds: int) -> None:
        self.credentials = credentials
        self._emulator = emulator
        self._call_seconds = call_seconds
        self.clock_shown: float | None = None  # Kaggle's clock in its last answer, UTC seconds

    def call(
        self,
        service: str,
        name: str,
        fields: Mapping[str, Any],
        read: Callable[[Answer], _Result],
        seconds: int | None = None,
    ) -> _Result:
        """Make one API call with the ``fields`` of its request, and return the result of ``read`` for its answer.

        Raises Denied if Kaggle rejects the call, Misconfigured if it rejects the credentials, and Unreachable if the
        outcome is uncertain, for example because the answer lacks a field that ``read`` needs.
        """
        response = self._post(service, name, fields, seconds or self._call_seconds)
        try:
            answer = Answer.parse(response.content)
            if answer.number("code") >= 400:  # with a message it would have been raised as such before
                raise NoAnswer("it has the code of an error, but no message")
            return read(answer)
        except NoAnswer as error:
            raise Unreachable("kaggle", name, f"the answer is not valid: {error}") from None

    def location(self, service: str, name: str, fields: Mapping[str, Any]) -> str:
        """Make a call that answers with a redirect, and return the redirect's address. Raises what ``call`` raises."""
        response = self._post(service, name, fields, self._call_seconds, redirects=True)
        address = str(response.headers.get("Location", ""))
        if not (response.is_redirect and address.startswith(("https://", "http://"))):
            raise Unreachable("kaggle", name, "the answer contains no address of the file")
        return address

    def _post(
        self, service: str, name: str, fields: Mapping[str, Any], seconds: int, *, redirects: bool = False
    ) -> "requests.Response":
        """Send a call and return its answer; raise for a refusal, and for a redirect unless the call ``redirects``."""
        from requests.exceptions import RequestException

        try:
            with self._session(seconds) as session:
                session.max_redirects = _REDIRECTS  # no redirect is followed here; with 0 the first would be an error
                body = body_of(service, name, fields)
                response = session.post(_address(f"{service}/{name}", self._emulator), json=body, allow_redirects=False)
        except (RequestException, TimeoutError) as error:
            raise Unreachable("kaggle", name, _reason(error)) from None
        if _refusal_of(response)[0] >= 400 or (response.is_redirect and not redirects):
            raise self._error_of(name, response)
        self.clock_shown = header_date(response.headers.get("Date")) or self.clock_shown
        return response

    def stream(self, path: str, idle_seconds: float, limit_bytes: int) -> Iterator[tuple[str, bytes]]:
        """GET ``path`` below the API; yield (content type, piece) until it ends, breaks, idles or is too long."""
        from requests.exceptions import RequestException

        opened = False
        url, headers = _address(path, self._emulator), {"Accept": "text/event-stream"}
        with self._session(self._call_seconds) as session:
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
                if error.response is None:
                    raise Unreachable("kaggle", "read the log", _reason(error)) from None
                raise self._error_of("read the log", error.response) from None
            except Exception as error:
                from urllib3.exceptions import HTTPError, ReadTimeoutError

                if isinstance(error, ReadTimeoutError) or (opened and isinstance(error, HTTPError)):
                    return  # the session is silent, or a load balancer closed an idle stream
                if isinstance(error, HTTPError):
                    raise Unreachable("kaggle", "read the log", _reason(error)) from None
                raise

    def download(self, url: str, target: Path, limit_bytes: int, seconds: float) -> None:
        """GET a signed address, without credentials, into the new file ``target``.

        A download may last any time while it makes progress: a broken transfer is resumed, a silence may last
        ``seconds``, and a rate below _RATE_MIN is an error. Raises OSError from the local disk, Denied (also for a file
        above ``limit_bytes``), Unreachable.
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
        """Download the missing end of the file and append it to ``sink``, in one exchange."""
        with self._session(self._call_seconds) as session:
            session.auth, session.max_redirects = None, _REDIRECTS
            headers = {"Range": f"bytes={sink.tell()}-"} if sink.tell() else {}
            began, had = stopwatch(), sink.tell()
            with session.get(url, headers=headers, stream=True, timeout=(CONNECT_SECONDS, seconds)) as response:
                if response.status_code >= 400:
                    raise Denied(response.status_code, "Kaggle refused the output file")
                if had and response.status_code != 206:
                    had = sink.seek(0)
                    sink.truncate()
                # Small pieces, because a broken connection loses the piece that is still in a buffer.
                while piece := response.raw.read1(PIECE_BYTES, decode_content=True):
                    sink.write(piece)
                    if sink.tell() > limit_bytes:
                        raise TooLarge(f"the output file is larger than {limit_bytes} bytes")
                    if stopwatch() - began > seconds + (sink.tell() - had) / _RATE_MIN:
                        raise Unreachable("kaggle", "download", f"slower than {_RATE_MIN} bytes a second")

    def put(
        self, url: str, source: Path, first: int | None, seconds: int, advanced: Callable[[int], object]
    ) -> tuple[int, str]:
        """PUT the file to a signed address from byte ``first`` on; with None, query how many bytes arrived.

        ``advanced`` is called with the number of bytes sent. The upload may last any time but must not pause: a
        connection is closed if it accepts no byte for CONNECT_SECONDS, or sends no answer for ``seconds`` after the
        last byte. Returns the status and the answer's Range header. Raises OSError, Unreachable.
        """
        from requests.exceptions import RequestException

        size = source.stat().st_size
        headers = {"Content-Type": "application/octet-stream"}
        if first is None:
            headers["Content-Range"] = f"bytes */{size}"
        elif first > 0:
            headers["Content-Range"] = f"bytes {first}-{size - 1}/{size}"
        with self._session(seconds) as session, source.open("rb") as stream:
            session.auth = None
            body = b"" if first is None else FilePart(stream, first, size, advanced)
            try:
                response = session.put(url, data=body, headers=headers)
            except (RequestException, TimeoutError) as error:
                raise Unreachable("kaggle", "upload", _reason(error)) from None
            return response.status_code, str(response.headers.get("Range", ""))

    def _session(self, seconds: int) -> "requests.Session":
        """Return a new HTTP session for one exchange. With an emulator it ignores the environment."""
        import requests
        from kagglesdk.kaggle_http_client import KaggleHttpClient

        session, ours = requests.Session(), self.credentials
        session.headers.update({"User-Agent": "uff-scheduler", "Content-Type": "application/json"})
        session.auth = KaggleHttpClient.BearerAuth(ours.token) if ours.token else (ours.username, ours.key)
        session.max_redirects = 0
        for scheme in ("http://", "https://"):
            session.mount(scheme, _bounded(seconds))
        if self._emulator:
            session.trust_env = False
            session.proxies = {"http": self._emulator, "https": self._emulator}
        return session

    def _error_of(self, name: str, response: "requests.Response") -> Exception:
        status, message = _refusal_of(response)
        if status == 401:
            why = f"the credentials from {self.credentials.origin} are refused"
            return Misconfigured("kaggle", name, why, "Create new credentials on Kaggle")
        if status == 429:
            wait_seconds = digits(response.headers.get("Retry-After"), SPAN_MAX)
            return Throttled(name, f"HTTP 429: {message}", float(wait_seconds or 0))
        if status >= 500 or status < 400 or status == _TIMED_OUT:  # a redirect is not a rejection
            return Unreachable("kaggle", name, f"HTTP {status}: {message}")
        return Denied(status, message)


def _address(path: str, emulator: str) -> str:
    """Return the URL of an API path: at Kaggle, or at its address behind an emulator."""
    from kagglesdk.kaggle_env import KaggleEnv, get_endpoint, get_env

    place = KaggleEnv.LOCAL if emulator else get_env()
    return f"{get_endpoint(place)}{'' if place is KaggleEnv.PROD else '/api'}/v1/{path}"


def plain(text: object) -> str:
    """Return a server's text as one short line without control characters, safe to store and display."""
    return "".join(c if c.isprintable() else " " for c in str(text or "")[:_MESSAGE_CHARACTERS])


def _refusal_of(response: Any) -> tuple[int, str]:
    """Return the status and the message of a refusal; a body may contain a worse status than its HTTP line."""
    try:
        body = response.json()
        status, message = int(body["code"]), str(body["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return int(response.status_code), plain(response.reason)
    return max(status, int(response.status_code)), plain(message)


def _reason(error: BaseException) -> str:
    """Describe an error without the texts that it may quote: signed addresses are secret, and bodies are untrusted."""
    from requests.exceptions import ConnectionError as Broken
    from requests.exceptions import Timeout

    name = type(error).__name__
    if isinstance(error, TimeoutError):
        return plain(f"{name}: {error}")
    if isinstance(error, Timeout):
        return f"no answer in time ({name})"
    return f"there is no connection, or it was closed ({name})" if isinstance(error, Broken) else name
