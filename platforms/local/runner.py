"""The runner: one keeper in a unit of its own, started by the service manager for each connection to its socket.

Standard input and output are the connection. It carries one line of JSON in, the order of platforms.local.spawn, and
one byte out, with which the keeper reports that the session is claimed. Whoever may connect may run programs as this
user, so the socket is accessible to that user only.
"""

import json
import os
import sys

from platforms.local.keeper import keep
from platforms.local.records import KEEPER_LOG

_ORDER_BYTES_MAX = 1 << 20


def main() -> None:
    """Read the order and keep its session until it ends."""
    words = sys.stdin.buffer.readline(_ORDER_BYTES_MAX)
    if not words.endswith(b"\n"):
        sys.exit("the order broke off, so nothing is started")
    order = json.loads(words)
    log = os.open(f"{order['folder']}/{KEEPER_LOG}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.close(log)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.environ.clear()
    os.environ.update(order["environment"])
    keep(order["arguments"], in_unit=True)


if __name__ == "__main__":
    main()
