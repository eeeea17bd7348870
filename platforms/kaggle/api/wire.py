"""HTTP to Kaggle: a deadline and a size limit on everything, answers sorted into what can be concluded from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from jobs.payload.bounds import SPAN_MAX, digits
from platforms.base import Misconfigured, Unreachable
from platforms.kaggle.api.answers import Answer, NoAnswer
from platforms.kaggle.api.credentials import Credentials
from platforms.kaggle.api.library import (
    CONNECT_SECONDS,
    PIECE_BYTES,
    AnswerTooLarge,
    Rest,
    open_client,
    request_of,
    stopwatch,
)

if TYPE_CHECKING:
    import requests

_Found = TypeVar("_Found")
_MESSAGE_CHARACTERS = 300
_DOWNLOAD_TRIES = 5  # without a byte of progress
_RATE_MIN = 10_000  # bytes a second
_REDIRECTS = 5  # from a signed address to where the file lies
TOO_LARGE = 413  # also for what we do not take
_TIMED_OUT = 408  # said by whatever stands between, which cannot know what was done


class Denied(Exception):
    """An answer that says no, with its HTTP status: 400, 403, 404 and their like. Nothing was changed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status
        self.missing = status in {403, 404}  # Kaggle does not tell "not there" from "not yours"


class TooLarge(Denied):
    """What comes is more than we take. Of what was done it tells nothing."""

    def __init__(self, message: str) -> None:
        super().__init__(TOO_LARGE, message)


class Throttled(Unreachable):
    """Too many calls; ``wait_seconds`` is what Kaggle asks for, 0 when it does not say."""

    def __init__(self, action: str, why: str, wait_seconds: float) -> None:
        super().__init__("kaggle", action, why)
        self.wait_seconds = wait_seconds


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to call. ``emulator`` is the address of a stand-in that is used as a proxy; empty means the real place."""

    emulator: str = ""
    call_seconds: int = 60


class Wire:
    """Calls Kaggle with the wire types of kagglesdk. Keeps no connection, so any thread may use it at any time."""

    def __init__(self, credentials: Credentials, endpoint: Endpoint) -> None:
        self._credentials = credentials
        self._endpoint = endpoint
        self.clock_shown: float | None = None  # what Kaggle's clock showed in its last answer, UTC seconds

    def call(
        self,
        service: str,
        name: str,
        fields: Mapping[str, Any],
        read: Callable[[Answer], _Found],
        seconds: int | None = None,
    ) -> _Found:
        """Make one remote call with the ``fields`` of its request, and return what ``read`` makes of its answer.

        Raises Denied for a no, Unreachable when nothing can be concluded, as from a body that lacks what ``read``
        needs, and Misconfigured when we are not let in.
        """
        from requests.exceptions import HTTPError, RequestException

        seconds = seconds or self._endpoint.call_seconds
        try:
            with self._client(seconds) as client:
                return read(client.call(service, name, request_of(service, name, fields), _Body))
        except HTTPError as error:
            raise self._sorted(name, error) from None
        except AnswerTooLarge as error:
            raise TooLarge(str(error)) from None
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
            with self._client(self._endpoint.call_seconds) as client:
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
        with self._client(self._endpoint.call_seconds) as client:
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
        with self._client(self._endpoint.call_seconds) as client:
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

        ``advanced`` is told how many bytes are out. The file may take any time, but not stand still: a connection that
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
        return open_client(self._credentials, self._endpoint.emulator, seconds, self._note_clock)

    def _note_clock(self, response: requests.Response) -> None:
        with suppress(KeyError, ValueError):
            self.clock_shown = parsedate_to_datetime(response.headers["Date"]).timestamp()

    def _sorted(self, name: str, error: requests.exceptions.RequestException) -> Exception:
        response = error.response
        if response is None:
            return Unreachable("kaggle", name, _reason(error))
        status, message = _told(response)
        if status == 401:
            return Misconfigured(
                "kaggle", name, f"the credentials from {self._credentials.origin} are refused", "Make new ones"
            )
        if status == 429:
            asked = digits(response.headers.get("Retry-After"), SPAN_MAX)
            return Throttled(name, f"HTTP 429: {message}", float(asked or 0))
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


def _told(response: Any) -> tuple[int, str]:
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
