"""What the daemon costs at rest: memory and processor time with 1,000 queued jobs and nothing it may start.

The pool is outside its opening hours, so every job waits; the daemon runs with its shipped rhythm. The daemon and every
process below it are counted: the planner's ends when there is nothing to plan for, and that is waited for. Two ratios
are printed against our own bounds, 80 MB resident and 1 % of a core, and one against a bare Python process.

    python benchmarks/bench_daemon_idle.py [--seconds 120] [--jobs 1000]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

BOUND_MEGABYTES = 80
BOUND_SHARE = 0.01
_SETTLE_SECONDS = 120.0  # at most: the first plan is work, not rest
_TICK = os.sysconf("SC_CLK_TCK")

_CONFIG = """
state_dir = "state"
models = []

[[pools]]
name = "desk"
platform = "local"
hours = ["{opens}-{closes} UTC"]
"""

_JOB = """
name = "job-{index:04d}"
role = "manager"
command = ["{{python}}", "train.py"]
target_step = 100000
steps_per_hour = 1000
weight = {weight}
"""


def main() -> int:
    """Measure and print; return 1 when a bound is broken."""
    parser = argparse.ArgumentParser(description="Memory and processor time of the daemon at rest.")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long to look")
    parser.add_argument("--jobs", type=int, default=1_000, help="queued jobs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-idle-") as name:
        folder = Path(name)
        config = _prepare(folder, options.jobs)
        with (folder / "daemon.log").open("wb") as log:
            daemon = subprocess.Popen([*_schedctl(config), "daemon"], stdout=log, stderr=log)
        try:
            _settle(daemon)
            before = _cpu_seconds(daemon.pid)
            time.sleep(options.seconds)
            if daemon.poll() is not None:
                sys.stderr.write((folder / "daemon.log").read_text())
                return 1
            share = (_cpu_seconds(daemon.pid) - before) / options.seconds
            processes = [daemon.pid, *_below(daemon.pid)]
            megabytes = sum(_resident_megabytes(pid) for pid in processes)
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()
    bare = _bare_megabytes()
    print(f"{options.jobs} queued jobs, {options.seconds:.0f} s at rest, processes: {len(processes)}")
    print(f"resident   {megabytes:7.1f} MB   {megabytes / BOUND_MEGABYTES:5.2f} of {BOUND_MEGABYTES} MB")
    print(f"           {megabytes / bare:7.1f} times bare Python ({bare:.1f} MB)")
    print(f"processor  {share:7.2%} of a core   {share / BOUND_SHARE:5.2f} of {BOUND_SHARE:.0%}")
    return 0 if megabytes <= BOUND_MEGABYTES and share <= BOUND_SHARE else 1


def _schedctl(config: Path) -> list[str]:
    return [sys.executable, "-m", "scheduler", "--config", str(config)]


def _prepare(folder: Path, jobs: int) -> Path:
    """Make settings whose only pool opens in twelve hours, a database, and the queue."""
    now = datetime.now(UTC)
    config = folder / "config.toml"
    opens, closes = now + timedelta(hours=12), now + timedelta(hours=16)
    config.write_text(_CONFIG.format(opens=f"{opens:%H:%M}", closes=f"{closes:%H:%M}"))
    subprocess.run([*_schedctl(config), "db", "init"], check=True, capture_output=True)
    _add_jobs(folder, config, jobs)
    return config


def _add_jobs(folder: Path, config: Path, jobs: int) -> None:
    from jobs.catalogue import job_from_toml
    from scheduler.app import load_app
    from scheduler.service.requests import queue

    app = load_app(config)
    file = folder / "job.toml"
    specs = []
    for index in range(jobs):
        file.write_text(_JOB.format(index=index, weight=1 + index % 7))
        specs.append(job_from_toml(file))
    queue.add(app.database, specs, app.clock.now(), "benchmark")
    app.database.close()


def _settle(daemon: subprocess.Popen[bytes]) -> None:
    """Wait until the daemon has planned and let its planner go."""
    end = time.monotonic() + _SETTLE_SECONDS
    planned = False
    while daemon.poll() is None and time.monotonic() < end:
        below = _below(daemon.pid)
        if planned and not below:
            return
        planned = planned or bool(below)
        time.sleep(0.2)


def _below(pid: int) -> list[int]:
    """Return the children of a process, their children, and so on."""
    children = [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]
    return [*children, *(deeper for child in children for deeper in _below(child))]


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _resident_megabytes(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1_000
    raise RuntimeError(f"process {pid} has no resident size")


def _bare_megabytes() -> float:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bare:
        time.sleep(0.5)
        megabytes = _resident_megabytes(bare.pid)
        bare.communicate(b"\n")
    return megabytes


if __name__ == "__main__":
    sys.exit(main())
