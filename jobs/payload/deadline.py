"""Total deadlines for network exchanges.

The time-out of a socket applies to each read: a server that sends one byte a second would block its client for ever.
"""

import socket
import sys
import threading
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, NamedTuple, Self, TypeVar
from urllib.error import HTTPError

_Connection = TypeVar("_Connection", bound=HTTPConnection)


class Deadline:
    """A context that shuts its watched sockets after some seconds of real time, and then raises TimeoutError."""

    _ends_in: tuple[type[Exception], ...] = (OSError, HTTPException, ValueError)  # what a cut exchange raises

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._over = self._renewed = False
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._timer = self._new_timer()

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._timer.cancel()
        with self._lock:
            while self._sockets:
                self._sockets.pop().close()
        # Data that was cut off may look complete, or cause an error of its own.
        if self._over and (error is None or isinstance(error, self._ends_in)):
            raise TimeoutError(f"no whole answer within {self._seconds:g} s") from error

    def watch(self, opened: socket.socket) -> socket.socket:
        """Watch one more socket, and return it. Its descriptor is duplicated, because TLS takes over the original."""
        with self._lock:
            self._sockets.append(socket.fromfd(opened.fileno(), opened.family, opened.type))
        if self._over:
            self._shut()
        return opened

    def follow(self, connection: _Connection) -> _Connection:
        """Watch the sockets that an HTTP connection opens, and return it."""
        opened: Any = connection  # the method of http.client that opens sockets is private
        create = opened._create_connection  # noqa: SLF001 - see above
        opened._create_connection = lambda *words, **more: self.watch(create(*words, **more))  # noqa: SLF001 - see above
        return connection

    def renew(self) -> None:
        """Start the deadline again once it expires, because a part of a long transfer is complete."""
        self._renewed = True

    def _new_timer(self) -> threading.Timer:
        timer = threading.Timer(self._seconds, self._end)
        timer.daemon = True
        return timer

    def _end(self) -> None:
        if self._renewed:
            self._renewed = False
            self._timer = self._new_timer()
            self._timer.start()
            return
        self._over = True
        self._shut()

    def _shut(self) -> None:
        with self._lock:
            for opened in self._sockets:
                with suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)


class ProcessDeadline(Deadline):
    """A deadline for all connections that this process opens in the block, for libraries that hide their sockets.

    After the deadline, connecting raises RuntimeError: after an OSError libraries would try again.
    """

    _ends_in = (Exception,)
    _entered = False

    def __enter__(self) -> Self:
        self._entered = True
        sys.addaudithook(self._on_event)  # Python cannot remove a hook: after the block it does nothing
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._entered = False
        super().__exit__(kind, error, trace)

    def _on_event(self, event: str, words: tuple[Any, ...]) -> None:
        if event == "socket.connect" and self._entered:
            if self._over:
                raise RuntimeError("the time for this exchange is over")
            self.watch(words[0])


class Stay(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, so that data and credentials go only to the configured address."""

    def redirect_request(self, *_: Any) -> None:
        """Return None, so that urllib raises an HTTPError with the status of the redirect."""


class HttpAnswer(NamedTuple):
    """The answer of a server; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def exchange(request: urllib.request.Request, seconds: float, bytes_max: int) -> HttpAnswer:
    """Return the answer, of any status; follow no redirect. Raises OSError, HTTPException, ValueError if incomplete."""
    with Deadline(seconds) as deadline:
        try:
            answer: Any = opener(deadline).open(request, timeout=seconds)
        except HTTPError as error:
            answer = error
        with answer:
            body = answer.read(bytes_max + 1)
            if len(body) > bytes_max:
                raise ValueError(f"the answer is longer than {bytes_max:,} bytes")
            return HttpAnswer(answer.status, {name.lower(): text for name, text in answer.headers.items()}, body)


def header_date(text: Any) -> float | None:
    """Return the UTC seconds of a ``Date`` header; None if it holds no date."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, AttributeError, OverflowError):
        return None


def opener(deadline: Deadline) -> urllib.request.OpenerDirector:
    """Return a urllib opener with a deadline that does not follow redirects."""
    return urllib.request.build_opener(Stay, _WatchedHandler(deadline))


class _WatchedHandler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """A handler whose connections are watched by a deadline."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        """Open a connection without TLS."""
        return self.do_open(self._connect(HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        """Open a connection with TLS."""
        return self.do_open(self._connect(HTTPSConnection), req, context=getattr(self, "_context", None))

    def _connect(self, kind: type[HTTPConnection]) -> Any:
        return lambda *words, **more: self._deadline.follow(kind(*words, **more))
