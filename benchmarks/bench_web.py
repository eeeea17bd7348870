"""What a page of the status page costs with 1,000 jobs and 10,000 runs: median and 95th percentile of its answers.

A year of sessions is written into a database of its own, then ``schedctl web serve`` answers one reader. Each page is
asked again and again, once as it stands and once after a change before every request, so that nothing kept in memory
helps. The bound is 50 ms for the median after a change; the ratio is to a plain answer of the same server.

    python benchmarks/bench_web.py [--jobs 1000] [--runs 10000] [--requests 30] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.web.world import World, write_world

BOUND_MS = 50.0
_PLAIN = "/health/live"


def main() -> int:
    """Measure and print; return 1 when a median is over the bound."""
    parser = argparse.ArgumentParser(description="Time of the status page's answers.")
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=30, help="of each page, in each way")
    parser.add_argument("--keep", type=Path, help="make the database in this folder and leave it there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-web-") as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        world = write_world(folder, options.jobs, options.runs, int(time.time()))
        print(f"{options.jobs} jobs, {options.runs} runs, {world.events} events, {os.cpu_count()} cores")
        command = [
            sys.executable,
            "-m",
            "scheduler",
            "--config",
            str(world.config),
            "--json",
            "web",
            "serve",
            "--port",
            "0",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            try:
                assert server.stdout is not None  # noqa: S101 - asked for above
                address = urlsplit(json.loads(server.stdout.readline())["address"])
                return _measure(world, str(address.hostname), int(address.port or 0), options.requests)
            finally:
                server.send_signal(signal.SIGTERM)
                server.wait()


def _measure(world: World, host: str, port: int, requests: int) -> int:
    connection = http.client.HTTPConnection(host, port)
    plain = statistics.median(_times(connection, _PLAIN, requests, None))
    print(f"a plain answer takes {plain:.1f} ms; all times are milliseconds")
    print(f"{'page':40} {'KiB':>5} {'median':>7} {'p95':>7} {'after a change':>15} {'p95':>7} {'ratio':>6}")
    worst = 0.0
    for path in world.pages:
        size = len(_get(connection, path))  # also warms up
        kept = sorted(_times(connection, path, requests, None))
        fresh = sorted(_times(connection, path, requests, world))
        median = statistics.median(fresh)
        worst = max(worst, median)
        print(
            f"{path:40} {size / 1_024:5.0f} {statistics.median(kept):7.1f} {_p95(kept):7.1f} {median:15.1f} "
            f"{_p95(fresh):7.1f} {median / plain:6.1f}"
        )
    print(f"slowest median after a change: {worst:.1f} ms, bound {BOUND_MS:.0f} ms")
    return int(worst > BOUND_MS)


def _times(connection: http.client.HTTPConnection, path: str, requests: int, world: World | None) -> list[float]:
    """Return milliseconds of each answer; with a ``world``, something is changed before each request."""
    found = []
    for _ in range(requests):
        if world is not None:
            world.change()
        begun = time.perf_counter()
        _get(connection, path)
        found.append(1_000 * (time.perf_counter() - begun))
    return found


def _get(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise SystemExit(f"{path} answered {answer.status}: {body[:300]!r}")
    return body


def _p95(ordered: list[float]) -> float:
    return ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]


if __name__ == "__main__":
    sys.exit(main())
