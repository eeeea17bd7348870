"""Server: serves the site from one process until SIGTERM or Ctrl-C."""

import asyncio
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from scheduler.app import App
from scheduler.service.outside.ports import EventLog
from scheduler.web.actors import Actors, Bearer
from scheduler.web.site import site


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Deadlines, in seconds, for receiving a request and for sending its answer; and the number of connections."""

    request_seconds: float = 10.0
    answer_seconds: float = 60.0
    connections_max: int = 128
    header_bytes_max: int = 16 << 10


class Connection(H11Protocol):
    """One connection. ``phase`` is what a deadline applies to: "request", "answer", or nothing."""

    limits = ServerLimits()
    phase = ""
    _timer: asyncio.TimerHandle | None = None
    since = 0.0
    _over = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Start the deadline; with too many connections the one that has waited longest is closed."""
        super().connection_made(transport)
        self.since = self.loop.time()
        self._wait_for("request", self.limits.request_seconds)
        if len(self.connections) > self.limits.connections_max:
            ours = [other for other in self.connections if isinstance(other, Connection)]
            idle = [other for other in ours if other.phase != "answer"]
            min(idle, key=lambda other: other.since, default=self).drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        self._wait_for("", None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received data, unless its request was answered already."""
        if not self._over:
            super().data_received(data)
            self._check_progress()

    def on_response_complete(self) -> None:
        """Start the deadline of the next request."""
        super().on_response_complete()
        self.since = self.loop.time()
        if self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY:
            # The rest of the body is read and dropped for a moment; closing at once would lose the answer.
            self._over = True
            self._unset_keepalive_if_required()
            if self.transport.can_write_eof() and not self.transport.is_closing():
                self.transport.write_eof()
            return
        self.phase = ""
        self._check_progress()

    def _check_progress(self) -> None:
        if self.transport.is_closing():
            return  # the running timer closes it if the client does not read the rest
        if self.conn.their_state is h11.SEND_BODY or (
            self.conn.their_state is h11.IDLE and (self.conn.trailing_data[0] or self.cycle is None)
        ):
            self._wait_for("request", self.limits.request_seconds)
        elif self._is_silent():
            self._wait_for("", None)  # uvicorn closes connections that are idle between requests
        else:
            self._wait_for("answer", self.limits.answer_seconds)

    def _wait_for(self, phase: str, seconds: float | None) -> None:
        if phase == self.phase and phase:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.phase = phase
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._end)

    def _is_silent(self) -> bool:
        return self.conn.their_state is h11.IDLE and not self.transport.get_write_buffer_size()

    def _end(self) -> None:
        if self.phase == "answer" and self._is_silent():
            self._wait_for("", None)  # the client has read all of it
        else:
            self.drop()

    def drop(self) -> None:
        """Close the connection at once and discard data that the client has not read."""
        if (sock := self.transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


def bounded(limits: ServerLimits) -> dict[str, Any]:
    """Return the uvicorn configuration class with ``limits``."""
    return {
        "http": type("Bounded", (Connection,), {"limits": limits}),
        "h11_max_incomplete_event_size": limits.header_bytes_max,
        "proxy_headers": False,  # otherwise local programs could forge their address
    }


_GRACE_SECONDS = 3
_LIMITS = ServerLimits()


class _Server(uvicorn.Server):
    """Ends on SIGTERM and Ctrl-C with exit code 0; uvicorn's own server would raise the signal again."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop gracefully on the first signal, at once on the second."""
        previous = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def serve(
    app: App,
    bearer: Bearer | None,
    log: EventLog,
    ready: Callable[[str], None],
    limits: ServerLimits = _LIMITS,
    actors: Actors | None = None,
) -> None:
    """Serve until stopped; ``ready`` is called with the address once it listens. Raises OSError, StoreFailure."""
    settings = app.settings.web
    application = site(app, bearer, log, actors)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With a named protocol TCP_NODELAY is set, so that answers do not wait for the client's last ACK.
    with closing(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((settings.host, settings.port))
        listening.listen(128)
        port = listening.getsockname()[1]
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"http://{host}:{port}/"
        log.info("web.started", address=address, token=bearer is not None, actions=actors is not None)
        ready(address)
        config = uvicorn.Config(
            application,
            **bounded(limits),
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_GRACE_SECONDS,
            ws="none",
        )
        _Server(config).run(sockets=[listening])
    log.info("web.stopped")
