"""Exchanges of botocore's that end in time, however slowly the other side goes on.

Botocore's time-outs count from byte to byte, its connections serve many exchanges, and a body is handed out before it
has come. So the sockets count: from the first byte of a question to the last one of its answer.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any

from jobs.payload.clock import stopwatch

_SECONDS = 60  # for an exchange, or for each piece of one that is long
_PIECE_BYTES = 1 << 18
_ANSWER_BYTES_MAX = 64 << 20  # no part of an object and no page of a listing is longer


class _Counting(socket.socket):
    """Raises TimeoutError in an exchange that lasts too long; the socket's own time-out is that of one call."""

    _asking = False
    _piece_bytes = _answer_bytes = 0
    _ends_at = 0.0

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send everything. An exchange begins with the first byte after those that came."""
        if not self._asking:
            self._asking, self._answer_bytes = True, 0
            self._renew()
        super().sendall(data, flags)
        self._count(len(data))

    def recv_into(self, buffer: Any, nbytes: Any = None, flags: int = 0) -> int:
        """Receive what has come. Raises OSError also when the answer is longer than any."""
        self._asking = False
        count = super().recv_into(buffer, nbytes or len(buffer), flags)
        self._answer_bytes += count
        if self._answer_bytes > _ANSWER_BYTES_MAX:
            raise OSError(f"the answer is longer than {_ANSWER_BYTES_MAX:,} bytes")
        self._count(count)
        return count

    def _count(self, count: int) -> None:
        if stopwatch() > self._ends_at:
            raise TimeoutError(f"no whole answer within {_SECONDS} s")
        self._piece_bytes += count
        if self._piece_bytes >= _PIECE_BYTES:
            self._renew()

    def _renew(self) -> None:
        self._piece_bytes, self._ends_at = 0, stopwatch() + _SECONDS


class _CountingTls(_Counting, ssl.SSLSocket):
    """The same with TLS, whose handshake has its time-out as a whole."""


class _Connection:
    def _new_conn(self) -> socket.socket:
        if context := getattr(self, "ssl_context", None):
            context.sslsocket_class = _CountingTls
        opened: socket.socket = super()._new_conn()  # type: ignore[misc] # botocore's connection is behind it
        seconds = opened.gettimeout()
        counting = _Counting(opened.family, opened.type, opened.proto, opened.detach())
        counting.settimeout(seconds)
        return counting


def bound(client: Any) -> None:
    """Let every exchange of a client end in time."""
    # Botocore has no public way to its connections. By these classes it opens them, also those to a proxy.
    pools = client._endpoint.http_session._pool_classes_by_scheme  # noqa: SLF001 - see above
    for scheme, pool in pools.items():
        connection = type("Connection", (_Connection, pool.ConnectionCls), {})
        pools[scheme] = type("Pool", (pool,), {"ConnectionCls": connection})
