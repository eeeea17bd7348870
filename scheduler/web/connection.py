"""Connection: HTTP as uvicorn speaks it, to readers who may keep us waiting only so long and be only so many.

uvicorn itself waits for ever for the rest of a header or a body, and for a reader who does not take the answer.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds for a whole request to come in and for its answer to be taken; connections at the same time."""

    request_seconds: float = 10.0
    answer_seconds: float = 60.0
    connections_max: int = 128
    header_bytes_max: int = 16 << 10


class Connection(H11Protocol):
    """One connection. ``phase`` says what is waited for: "request", "answer", or nothing."""

    limits = Limits()
    phase = ""
    _timer: asyncio.TimerHandle | None = None
    since = 0.0
    _over = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Begin to wait; where there are too many, the one that has kept us waiting for longest goes."""
        super().connection_made(transport)
        self.since = self.loop.time()
        self._wait_for("request", self.limits.request_seconds)
        if len(self.connections) > self.limits.connections_max:
            ours = [other for other in self.connections if isinstance(other, Connection)]
            idle = [other for other in ours if other.phase != "answer"]
            min(idle, key=lambda other: other.since, default=self).drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._wait_for("", None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came, unless the request that it belongs to has been answered already."""
        if not self._over:
            super().data_received(data)
            self._look()

    def on_response_complete(self) -> None:
        """Go on to the next request."""
        super().on_response_complete()
        self.since = self.loop.time()
        if self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY:
            # The rest of the body is not wanted. It is let run dry for a moment, or the answer would be lost.
            self._over = True
            self._unset_keepalive_if_required()
            if self.transport.can_write_eof() and not self.transport.is_closing():
                self.transport.write_eof()
            return
        self.phase = ""
        self._look()

    def _look(self) -> None:
        if self.transport.is_closing():
            return  # the timer that runs ends it if the reader does not take the rest
        if self.conn.their_state is h11.SEND_BODY or (
            self.conn.their_state is h11.IDLE and (self.conn.trailing_data[0] or self.cycle is None)
        ):
            self._wait_for("request", self.limits.request_seconds)
        elif self._is_silent():
            self._wait_for("", None)  # uvicorn ends a connection that stays silent between two requests
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
            self._wait_for("", None)  # the reader took all of it
        else:
            self.drop()

    def drop(self) -> None:
        """End the connection at once, with what the kernel still holds for a reader who does not take it."""
        if (found := self.transport.get_extra_info("socket")) is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


def bounded(limits: Limits) -> dict[str, Any]:
    """Return what makes uvicorn's configuration one with ``limits``."""
    return {
        "http": type("Bounded", (Connection,), {"limits": limits}),
        "h11_max_incomplete_event_size": limits.header_bytes_max,
    }
