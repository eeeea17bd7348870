"""A server that goes on byte by byte, in plain text or with TLS."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nX-Long: "


class Dripper:
    """A server that sends a byte every few milliseconds, and never ends."""

    def __init__(self, first: bytes = HEAD, context: ssl.SSLContext | None = None) -> None:
        self.first = first
        self._context = context
        self._over = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.address = f"{'https' if context else 'http'}://localhost:{self.port}"
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._drip, args=(connection,)))
            self._threads[-1].start()

    def _drip(self, connection: socket.socket) -> None:
        with (
            connection,
            suppress(OSError),
            self._context.wrap_socket(connection, server_side=True) if self._context else connection as served,
        ):
            served.sendall(self.first)
            while not self._over.wait(0.02):
                served.sendall(b"x")

    def close(self) -> None:
        """End it."""
        self._over.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join()
