"""The runner: one keeper in a unit of its own, started by the service manager for each connection to its socket.

Standard input and output are the connection. It carries one line of JSON in, the order of platforms.local.spawn, and
one byte out, with which the keeper reports that the session is claimed. A user who can connect can run programs as this
user, so no other user can open the socket.
"""

import json
import os
import sys

from platforms.local.keeper import keep
from platforms.local.records import KEEPER_LOG

_ORDER_BYTES_MAX = 1 << 20


def main() -> None:
    """Read the order and keep its session until it ends."""
    line = sys.stdin.buffer.readline(_ORDER_BYTES_MAX)
    if not line.endswith(b"\n"):
        sys.exit("the order is incomplete, so nothing is started")
    order = json.loads(line)
    log = os.open(f"{order['folder']}/{KEEPER_LOG}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.close(log)
    empty_input = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty_input, 0)
    os.close(empty_input)
    os.environ.clear()
    os.environ.update(order["environment"])
    keep(order["arguments"], in_unit=True)


if __name__ == "__main__":
    main()
