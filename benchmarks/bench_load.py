"""What 200 pools and 1,000 jobs cost, beside another commit: queue, plan, report, readers and the memory of the daemon.

Settings, queue and history are made alike for both, and both are measured in one run. Seconds of commands are
processor time, their children's too, with compiled modules as an installed program has them: what the clock shows on a
busy machine depends on its other work. Readers wait by the clock; a page may take a twentieth of their bound in
processor time, so that the last of twenty is in time. Memory is the largest that the daemon and its planner had until a
plan was made; the pools are closed then, so no session is started. With ``--live`` another daemon starts a session on
so many pools, and is measured until all of them have reported for a while; they are ended afterwards. Each line is a
figure of this checkout, its share of our bound, and its ratio to the commit in the folder that ``--against`` names.
Returns 1 when a bound is broken.

    python benchmarks/bench_load.py [--pools 200] [--jobs 1000] [--runs 5000] [--live 198] [--against FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from urllib.request import urlopen

BOUNDS = {
    "queue add --models, s": 10.0,
    "plan preview, s": 3.0,
    "report weekly, s": 1.0,
    "20 readers p95, ms": 100.0,
    "page, ms of a core": 100.0 / 20,
    "daemon, MB": 150.0,
    "planner, MB": 120.0,
    "daemon of live sessions, MB": 150.0,
    "daemon of live sessions, % of a core": 10.0,
    "database is locked, times": 0.0,
}
_HERE = Path(__file__).resolve().parents[1]
_READERS = 20
_REQUESTS = 10  # of each reader
_PLAN_SECONDS = 180.0  # at most until the daemon's planner has come and gone
_LIVE_SECONDS = 300.0  # at most until all sessions run
_STEADY_SECONDS = 60.0
_POOL = """
[[pools]]
name = "pool-{index:03d}"
platform = "local"
vram_gib = 24
{hours}
[[pools.quotas]]
name = "hours of the week"
kind = "week"
limit = "{limit}h"
resets = "Saturday 00:00"
zone = "UTC"
"""
_JOB = """
[[jobs]]
name = "job-{index:04d}"
role = "manager"
command = ["sleep", "3600"]
target_step = {steps}
steps_per_hour = {speed}
weight = {weight}
{deadline}
"""
_HISTORY = """
import sys, time
from pathlib import Path
from tests.lab.web.world import write_world
write_world(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(time.time())).database.close()
"""


def main() -> int:
    """Measure and print; return 1 when a bound is broken."""
    parser = argparse.ArgumentParser(description="Time and memory of 200 pools and 1,000 jobs.")
    for name, count in (("pools", 200), ("jobs", 1_000), ("runs", 5_000), ("live", 0)):
        parser.add_argument(f"--{name}", type=int, default=count, help=f"how many {name} there are")
    parser.add_argument("--against", type=Path, help="a checkout of the commit to compare with")
    options = parser.parse_args()
    before = measure(options.against.resolve(), options) if options.against else {}
    figures = measure(_HERE, options)
    for name, found in figures.items():
        ratio = f"   {_share(found, before[name])} of {before[name]:.2f} before" if name in before else ""
        print(f"{name:36} {found:8.2f}   {_share(found, BOUNDS[name])} of {BOUNDS[name]:g}{ratio}")
    return int(any(found > BOUNDS[name] for name, found in figures.items()))


def _share(found: float, whole: float) -> str:
    return f"{found / whole:5.2f}" if whole else f"{found:5.0f}"


def measure(checkout: Path, options: argparse.Namespace) -> dict[str, float]:
    """Return the figures of one checkout."""
    with tempfile.TemporaryDirectory(prefix="bench-load-", ignore_cleanup_errors=True) as name:
        many, history = Path(name) / "many", Path(name) / "history"
        history.mkdir()
        _write_settings(many, options)
        words = [sys.executable, "-c", _HISTORY, str(history), str(options.jobs), str(options.runs)]
        subprocess.run(words, check=True, env=_environ(checkout), cwd=checkout)
        _seconds(checkout, many / "open.toml", "db", "init")
        return {
            "queue add --models, s": _seconds(checkout, many / "open.toml", "queue", "add", "--models"),
            "plan preview, s": _seconds(checkout, many / "open.toml", "plan", "preview"),
            "report weekly, s": min(_seconds(checkout, history / "config.toml", "report", "weekly") for _ in range(3)),
            **_readers(checkout, history / "config.toml"),
            **_peaks(checkout, many / "closed.toml"),
            **(_live(checkout, many / "live.toml", options.live) if options.live else {}),
        }


def _write_settings(folder: Path, options: argparse.Namespace) -> None:
    folder.mkdir()
    now = datetime.now(UTC)
    opens, closes = now + timedelta(hours=12), now + timedelta(hours=16)
    shut = f'hours = ["{opens:%H:%M}-{closes:%H:%M} UTC"]'
    for name, used in (("open", options.pools), ("closed", 0), ("live", options.live)):
        text = "".join(
            _POOL.format(index=index, hours="" if index < used else shut, limit=20 + index % 20)
            for index in range(options.pools)
        )
        (folder / f"{name}.toml").write_text(f'state_dir = "state"\nmodels = ["models.toml"]\n{text}')
    with (folder / "models.toml").open("w") as models:
        for index in range(options.jobs):
            at = now + timedelta(days=1 + index % 20)
            deadline = f'deadline = "{at:%Y-%m-%dT%H:%M:%SZ}"' if index % 4 == 0 else ""
            steps, speed = 10_000 + 100 * (index % 50), 500 + 10 * (index % 40)
            models.write(_JOB.format(index=index, steps=steps, speed=speed, weight=1 + index % 7, deadline=deadline))


def _environ(checkout: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": ""}


def _start(checkout: Path, config: Path, *words: str) -> subprocess.Popen[bytes]:
    log = config.with_suffix(".log").open("ab")
    with log:
        return subprocess.Popen(
            [sys.executable, "-m", "scheduler", "--config", str(config), *words],
            env=_environ(checkout),
            cwd=checkout,
            stdout=subprocess.PIPE,
            stderr=log,
        )


def _seconds(checkout: Path, config: Path, *words: str) -> float:
    before = getrusage(RUSAGE_CHILDREN)
    with _start(checkout, config, *words) as process:
        process.communicate()
    if process.returncode:
        raise SystemExit(f"{words} ended with {process.returncode}: {config.with_suffix('.log').read_text()[-2_000:]}")
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _readers(checkout: Path, config: Path) -> dict[str, float]:
    """Return the figures of the first page's answers to readers who ask all at once, after one before them."""
    with _start(checkout, config, "--json", "web", "serve", "--port", "0") as server:
        assert server.stdout is not None  # noqa: S101 - for the type checker
        address = json.loads(server.stdout.readline())["address"]
        try:
            _answer_ms(address)  # templates are read and modules loaded
            began = _processor_seconds(server.pid)
            with ThreadPoolExecutor(_READERS) as readers:
                times = sorted(readers.map(_answer_ms, [address] * (_READERS * _REQUESTS)))
            busy = _processor_seconds(server.pid) - began
        finally:
            server.send_signal(signal.SIGTERM)
    return {
        "20 readers p95, ms": times[len(times) * 95 // 100],
        "page, ms of a core": 1_000 * busy / len(times),
    }


def _answer_ms(address: str) -> float:
    began = time.monotonic()
    with urlopen(address, timeout=60) as answer:  # noqa: S310 - our own server on the loopback interface
        answer.read()
    return (time.monotonic() - began) * 1_000


def _peaks(checkout: Path, config: Path) -> dict[str, float]:
    daemon_peak, planner_peak = 0.0, 0.0
    with _start(checkout, config, "daemon") as daemon:
        try:
            end = time.monotonic() + _PLAN_SECONDS
            while daemon.poll() is None and time.monotonic() < end:
                daemon_peak = max(daemon_peak, _megabytes(daemon.pid))
                below = [_megabytes(child) for child in _below(daemon.pid)]
                planner_peak = max([planner_peak, *below])
                if planner_peak and not below:
                    break
                time.sleep(0.2)
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.communicate()
    return {"daemon, MB": daemon_peak, "planner, MB": planner_peak}


def _live(checkout: Path, config: Path, sessions: int) -> dict[str, float]:
    """Return the figures of a daemon that has started so many sessions; whoever is left of them is ended."""
    claims, peak = config.parent / "state" / "sessions", 0.0
    try:
        with _start(checkout, config, "daemon") as daemon:
            try:
                end = time.monotonic() + _LIVE_SECONDS
                while len(list(claims.glob("*/*/claim.json"))) < sessions and time.monotonic() < end:
                    peak = max(peak, _megabytes(daemon.pid))
                    time.sleep(0.5)
                began = _processor_seconds(daemon.pid)
                time.sleep(_STEADY_SECONDS)
                busy = _processor_seconds(daemon.pid) - began
                peak = max(peak, _megabytes(daemon.pid))
            finally:
                daemon.send_signal(signal.SIGTERM)
                daemon.communicate()
    finally:
        found = [json.loads(path.read_text()) for path in claims.glob("*/*/claim.json")]
        for claim in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(claim["agent"], signal.SIGKILL)  # its keeper ends what it started
    if len(found) < sessions:
        raise SystemExit(f"{len(found)} of {sessions} sessions were started")
    return {
        "daemon of live sessions, MB": peak,
        "daemon of live sessions, % of a core": 100 * busy / _STEADY_SECONDS,
        "database is locked, times": config.with_suffix(".log").read_text().count("database is locked"),
    }


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _below(pid: int) -> list[int]:
    return [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]


def _megabytes(pid: int) -> float:
    """Return the largest resident size that a process ever had; 0 for one that is over."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1_000 for line in lines if line.startswith("VmHWM:")), 0.0)


if __name__ == "__main__":
    sys.exit(main())
