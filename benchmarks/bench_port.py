"""What `schedctl port` costs: round trips a second with `status` kept, a 20 MB frame, and 1,000 subscriptions.

Beside each stands a plain echo: a program of ten lines that reads frames and writes them back through the same kind of
pipes, to separate what the pipes and this machine cost from what the port costs. The bound is 10,000 round
trips a second, one after the other.

    python benchmarks/bench_port.py [--seconds 3] [--jobs 100] [--subscriptions 1000]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.port import PortClient, talking
from tests.lab.web.world import World, write_world

if TYPE_CHECKING:
    from collections.abc import Callable

BOUND = 10_000.0
_ECHO = """
import os, sys
source = os.fdopen(0, "rb", buffering=1 << 16)
while head := source.read(4):
    frame = head + source.read(int.from_bytes(head))
    written = os.write(1, frame)
    while written < len(frame):
        written += os.write(1, memoryview(frame)[written:])
"""
_STATUS = json.dumps({"tag": 1, "verb": "status", "args": {}}).encode()


def main() -> int:
    """Measure and print; return 1 when the port makes fewer round trips than it must."""
    parser = argparse.ArgumentParser(description="Round trips, large frames and subscriptions of schedctl port.")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--subscriptions", type=int, default=1_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-port-") as name:
        world = write_world(Path(name), options.jobs, options.jobs * 10, int(time.time()))
        print(f"{options.jobs} jobs, {world.events} events, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        with talking(world.config) as port:
            enough = _measure(port, world, options.seconds, options.subscriptions)
        world.database.close()
    return 0 if enough else 1


def _measure(port: PortClient, world: World, seconds: float, subscriptions: int) -> bool:
    status = len(json.dumps(port.ask("status")))
    large = json.dumps({"tag": 1, "verb": "echo", "args": {"data": "x" * (20 << 20)}}).encode()
    with subprocess.Popen([sys.executable, "-c", _ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        plain = PortClient(process)
        rows = [
            (f"status, kept ({status} bytes)", _rate(_asker(port, _STATUS), seconds)),
            ("echo of the same question", _rate(_asker(plain, _STATUS), seconds)),
            (f"echo of {status} bytes", _rate(_asker(plain, b"x" * status), seconds)),
        ]
        print(f"{'round trips, one after the other':<40}{'a second':>12}{'of the echo':>14}")
        for what, rate in rows:
            print(f"{what:<40}{rate:>12,.0f}{rate / rows[1][1]:>14.2f}")
        together = 16 * _rate(_asker(port, _STATUS, 16), seconds)
        print(f"{'status, kept, 16 questions at a time':<40}{together:>12,.0f}{together / rows[1][1]:>14.2f}")
        ours, echo = (1 / _rate(_asker(one, large), seconds) for one in (port, plain))
        print(f"20 MB there and back: {ours * 1_000:.0f} ms, plain echo {echo * 1_000:.0f} ms, ratio {ours / echo:.1f}")
        if process.stdin is not None:
            process.stdin.close()
    _subscribe(port, world, subscriptions)
    with_them = _rate(_asker(port, _STATUS), seconds)
    print(f"status beside {subscriptions} subscriptions: {with_them:,.0f} round trips a second")
    enough = rows[0][1] >= BOUND
    print(f"bound {BOUND:,.0f}: {'kept' if enough else 'MISSED'}")
    return enough


def _subscribe(port: PortClient, world: World, count: int) -> None:
    began = time.perf_counter()
    waiting = {port.ask("events.subscribe")["subscription"] for _ in range(count)}
    print(f"{count} subscriptions made in {time.perf_counter() - began:.2f} s")
    began = time.perf_counter()
    world.change()
    while waiting:
        waiting.discard(port.read().get("subscription"))
    print(f"one event at all of them {time.perf_counter() - began:.2f} s after it happened (one look every 0.2 s)")


def _asker(port: PortClient, body: bytes, at_once: int = 1) -> Callable[[], None]:
    source, sink = port.process.stdout, port.process.stdin
    if source is None or sink is None:
        raise AssertionError("no pipes")
    frame = (len(body).to_bytes(4) + body) * at_once
    number = sink.fileno()

    def ask() -> None:
        if len(frame) > 60_000:
            sink.write(frame)
            sink.flush()
        else:
            os.write(number, frame)
        for _ in range(at_once):
            if len(source.read(int.from_bytes(source.read(4)))) == 0:
                raise EOFError

    return ask


def _rate(ask: Callable[[], None], seconds: float) -> float:
    ask()
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(20 if count else 1):
            ask()
            count += 1
    return count / (time.perf_counter() - began)


if __name__ == "__main__":
    sys.exit(main())
