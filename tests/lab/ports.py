"""Ports for servers that must be told theirs before they listen."""

from __future__ import annotations

import os
import socket
from itertools import cycle

# Below those that systems give to connections, so that none is taken between the question and the server's start. Each
# process begins at another place: tests run side by side.
_FIRST, _LAST = 10_000, 32_000
_ALL = range(_FIRST, _LAST)
_begin = os.getpid() * 211 % len(_ALL)
_next: cycle[int] = cycle([*_ALL[_begin:], *_ALL[:_begin]])


def free_port() -> int:
    """Return a port of the loopback interface that nobody has, and that this process has not returned lately."""
    while True:
        port = next(_next)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:  # somebody's
                continue
        return port
