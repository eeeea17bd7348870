"""What one look at a Slurm pool costs with many jobs in its queue, beside a plain squeue of the same queue.

A real controller and two nodes with four pretended GPUs each are started (Debian's slurmctld, slurmd, slurm-client and
munge, as root). The bounds are one command, and 200 ms of processor time of ours: this process and all it started, but
not the controller.

    python benchmarks/bench_slurm.py [--jobs 1000] [--looks 10]
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from platforms.registry import PlatformContext
from platforms.slurm.adapter import SlurmPlatform
from platforms.slurm.judge import comment
from platforms.slurm.settings import read_settings
from platforms.targets.reach import Here
from tests.lab.slurm import SlurmLab, slurm_lab

if TYPE_CHECKING:
    from collections.abc import Callable

BOUND_SECONDS = 0.2


class Counted(Here):
    """This machine, with its commands counted."""

    ran = 0

    def bash(self, *given: Any) -> Any:
        """Count, then run."""
        Counted.ran += 1
        return super().bash(*given)


def main() -> int:
    """Measure and print; return 1 when a look costs more than it may."""
    parser = argparse.ArgumentParser(description="The cost of one look at a Slurm pool with many jobs.")
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--looks", type=int, default=10)
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="bench-slurm-") as name, slurm_lab() as lab:
            return _measured(lab, Path(name), options.jobs, options.looks)
    except pytest.skip.Exception as missing:
        print(f"not measured: {missing}", file=sys.stderr)
        return 1


def _measured(lab: SlurmLab, folder: Path, jobs: int, looks: int) -> int:
    os.environ["SLURM_CONF"] = str(lab.conf)
    context = PlatformContext(folder / "state", sys.executable, folder / "bundle", sessions_max=jobs)
    platform = SlurmPlatform({"slurm_conf": str(lab.conf), "command_seconds": "60"}, context)
    keys = [f"uff-bench-{number:05d}" for number in range(jobs)]
    _submit(folder, keys)
    now = int(time.time())
    known = _look(platform, keys, now)
    running = sum(one.state.value == "running" for one in known.values())
    print(f"{len(known)} sessions in the queue, {running} of them running, {os.cpu_count()} cores")
    Counted.ran = 0
    object.__setattr__(platform._settings, "reach", Counted("slurm", 8 << 20))  # noqa: SLF001 - to count what it asks
    ours = _cost(lambda: _look(platform, keys, now), looks)
    squeue = shlex.split("squeue --noheader --states=all")
    plain = _cost(lambda: subprocess.run(squeue, stdout=subprocess.DEVNULL, check=True), looks)
    print(f"{'':<24}{'processor ms':>14}{'of squeue':>11}{'all ms':>10}{'commands':>10}")
    commands = Counted.ran / looks
    for what, (processor, whole), count in (("one look", ours, commands), ("plain squeue", plain, 1.0)):
        print(f"{what:<24}{processor * 1e3:>14.0f}{processor / plain[0]:>11.1f}{whole * 1e3:>10.0f}{count:>10.1f}")
    kept = ours[0] <= BOUND_SECONDS and commands <= 1
    print(f"bounds {BOUND_SECONDS * 1e3:.0f} ms and one command: {'kept' if kept else 'MISSED'}")
    return 0 if kept else 1


def _look(platform: SlurmPlatform, keys: list[str], now: int) -> Any:
    return platform.find(keys, now)


def _submit(folder: Path, keys: list[str]) -> None:
    """Submit jobs that carry the pool's mark, as its adapter does, but without what a session needs."""
    owner = read_settings({}, (folder / "state").absolute(), sys.executable).owner
    until = int(time.time()) + 86_400
    lines = [
        f"sbatch --quiet --job-name={key} --comment={shlex.quote(comment(key, owner, until))} --output=/dev/null "
        "--wrap='sleep 3600'"
        for key in keys
    ]
    subprocess.run(["bash", "-e"], input="\n".join(lines), text=True, check=True, stdout=subprocess.DEVNULL)


def _cost(look: Callable[[], Any], count: int) -> tuple[float, float]:
    """Return the median seconds of the processor and of the clock that a look takes."""
    spent, whole = [], []
    for _ in range(count):
        before, began = _processor(), time.perf_counter()
        look()
        whole.append(time.perf_counter() - began)
        spent.append(_processor() - before)
    return statistics.median(spent), statistics.median(whole)


def _processor() -> float:
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


if __name__ == "__main__":
    sys.exit(main())
