"""An emulator as a program of its own: it says its address, and goes on until it is told to end or is idle."""

from __future__ import annotations

import re
import signal
import sys
import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

# What makes sums come out the same in all sessions of this machine, whatever cloud they are said to run on.
SUMS = re.compile(r"(OMP|MKL|OPENBLAS)_\w+")


class Server(Protocol):
    """What is served: where, and how many calls came."""

    @property
    def address(self) -> str:
        """What clients are given."""
        ...

    heard: int


def ending() -> threading.Event:
    """Return what is set when the program is told to end, by SIGTERM or SIGINT."""
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    return over


def serve(server: Server, over: threading.Event, idle_seconds: float, busy: Callable[[], bool]) -> None:
    """Print the address and wait until it is ``over``; with ``idle_seconds``, also until nothing happened for so long.

    Nothing happens while nobody calls and it is not ``busy``.
    """
    sys.stdout.write(f"{server.address}\n")
    sys.stdout.flush()
    heard = -1
    while not over.wait(idle_seconds or None):
        if heard == server.heard and not busy():
            break
        heard = server.heard
