"""Notify: tells the service manager how the daemon is, by the datagrams of sd_notify(3). Silent where none listens."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler import clock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ADDRESS = "NOTIFY_SOCKET"
_SECONDS = 1.0  # a manager that does not read must not hold up the daemon
_STATUS_CHARACTERS = 200
_EXTENSIONS = 20
_EXTENSION_SECONDS = 15


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """The manager at the other end of ``address``; with an empty one nothing is sent."""

    address: str = ""

    @classmethod
    def of(cls, environ: Mapping[str, str] = os.environ) -> ServiceManager:
        """Return the manager that started this process, if one did that wants to hear from it."""
        return cls(environ.get(_ADDRESS, ""))

    def ready(self, status: str) -> bool:
        """Say that start or reload is done."""
        return self._tell("READY=1", _status(status))

    def progress(self, status: str) -> bool:
        """Feed the watchdog. To be called when work was done, and never by a timer that only proves its own life."""
        return self._tell("WATCHDOG=1", _status(status))

    def reloading(self) -> bool:
        """Say that a reload begins; :meth:`ready` ends it."""
        return self._tell("RELOADING=1", f"MONOTONIC_USEC={round(clock.stopwatch() * 1e6)}")

    def stopping(self, status: str) -> bool:
        """Say that the end begins."""
        return self._tell("STOPPING=1", _status(status))

    def extend(self, seconds: int) -> bool:
        """Ask for ``seconds`` more, from now on, to start or stop."""
        return self._tell(f"EXTEND_TIMEOUT_USEC={seconds * 1_000_000}")

    @contextmanager
    def more_time(self) -> Iterator[None]:
        """Ask for more time again and again while the body runs, for five minutes in all: what hangs must be killed."""
        done = threading.Event()

        def ask() -> None:
            for _ in range(_EXTENSIONS):
                if not self.extend(2 * _EXTENSION_SECONDS) or done.wait(_EXTENSION_SECONDS):
                    return

        asking = threading.Thread(target=ask, name="more time", daemon=True)
        asking.start()
        try:
            yield
        finally:
            done.set()
            asking.join()

    def _tell(self, *lines: str) -> bool:
        """Send one datagram; return whether it was taken. What the manager does not hear, it acts on by itself."""
        if not self.address:
            return False
        # A leading @ stands for the zero byte of an abstract address.
        address = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(_SECONDS)
                sender.sendto("\n".join(lines).encode(), address)
        except OSError:
            return False
        return True


def _status(text: str) -> str:
    """Return a status as one printable line; a line break in it would begin another assignment."""
    return f"STATUS={''.join(c if c.isprintable() else ' ' for c in text)[:_STATUS_CHARACTERS]}"
