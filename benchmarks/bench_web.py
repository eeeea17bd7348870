"""What a page of the status page costs with 1,000 jobs and 10,000 runs: median and 95th percentile of its answers.

A year of sessions is written into a database of its own, then ``schedctl web serve`` answers one reader. Each page is
asked again and again, once as it stands and once after a change before every request, so that nothing kept in memory
helps. The bound is 50 ms for the median after a change; the ratio is to a plain answer of the same server. On a machine
that has other work the server's processor time tells more than what the clock shows.

    python benchmarks/bench_web.py [--jobs 1000] [--runs 10000] [--requests 30] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import http.client
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.lab.web.site import served
from tests.lab.web.world import World, write_world

BOUND_MS = 50.0
_PLAIN = "/health/live"
_TICK = os.sysconf("SC_CLK_TCK")


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
        with served(world) as page:
            address = urlsplit(page.address)
            reader = Reader(str(address.hostname), int(address.port or 0), page.pid)
            return _measure(world, reader, options.requests)


@dataclass
class Reader:
    """One reader of the page, and the process that answers it."""

    host: str
    port: int
    pid: int

    def __post_init__(self) -> None:
        self._connection = http.client.HTTPConnection(self.host, self.port)

    def get(self, path: str) -> bytes:
        """Return an answer, which must be a success."""
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path} answered {answer.status}: {body[:300]!r}")
        return body

    def times(self, path: str, requests: int, world: World | None) -> tuple[list[float], float]:
        """Return milliseconds of each answer in order of length, and the server's processor time for one.

        With a ``world``, something is changed before each request.
        """
        found, before = [], self._ticks()
        for _ in range(requests):
            if world is not None:
                world.change()
            begun = time.perf_counter()
            self.get(path)
            found.append(1_000 * (time.perf_counter() - begun))
        return sorted(found), 1_000 * (self._ticks() - before) / _TICK / requests

    def _ticks(self) -> int:
        user, system = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return int(user) + int(system)


def _measure(world: World, reader: Reader, requests: int) -> int:
    plain = statistics.median(reader.times(_PLAIN, requests, None)[0])
    print(f"a plain answer takes {plain:.1f} ms; all times are milliseconds, cpu is the server's own")
    print(
        f"{'page':32} {'KiB':>5} {'median':>7} {'p95':>7} {'cpu':>6} {'changed':>8} {'p95':>7} {'cpu':>6} {'ratio':>6}"
    )
    worst = 0.0
    for path in world.pages:
        size = len(reader.get(path))  # also warms up
        kept, kept_cpu = reader.times(path, requests, None)
        fresh, fresh_cpu = reader.times(path, requests, world)
        median = statistics.median(fresh)
        worst = max(worst, median)
        print(
            f"{path:32} {size / 1_024:5.0f} {statistics.median(kept):7.1f} {_p95(kept):7.1f} {kept_cpu:6.1f} "
            f"{median:8.1f} {_p95(fresh):7.1f} {fresh_cpu:6.1f} {median / plain:6.1f}"
        )
    print(f"slowest median after a change: {worst:.1f} ms, bound {BOUND_MS:.0f} ms; load {os.getloadavg()[0]:.1f}")
    return int(worst > BOUND_MS)


def _p95(ordered: list[float]) -> float:
    return ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]


if __name__ == "__main__":
    sys.exit(main())
