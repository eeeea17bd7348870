"""How fast `schedctl queue list --json` starts on a queue of 1,000 jobs, against two baselines.

The floor is `python -c pass`, which no program in Python can beat. The yardstick is `kaggle quota --help`, the closest
command that people of this field type all day; it is installed in a throw-away environment of its own (it needs `six`
without declaring it), and skipped loudly where packages cannot be fetched. Our own bounds: 100 ms and 40 MB.

    python benchmarks/bench_cli_start.py [--runs 30] [--no-kaggle]
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

JOBS = 1_000
WARM_UP_RUNS = 3
BOUND_SECONDS = 0.100
BOUND_MEGABYTES = 40
KAGGLE = ("kaggle==2.2.4", "six")

# A child counts the memory of the process it was forked from as its own peak, so it is forked from one that is smaller
# than anything measured here: Python without its site, importing built-in modules alone.
LAUNCHER = """
import posix, sys, time
quiet = [(posix.POSIX_SPAWN_OPEN, number, "/dev/null", posix.O_WRONLY, 0) for number in (1, 2)]
begin = time.perf_counter()
process = posix.posix_spawn(sys.argv[1], sys.argv[1:], posix.environ, file_actions=quiet)
status, usage = posix.wait4(process, 0)[1:]
print(time.perf_counter() - begin, usage.ru_maxrss, posix.waitstatus_to_exitcode(status))
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """Wall seconds of every run, and the largest resident size of any in megabytes."""

    name: str
    seconds: tuple[float, ...]
    megabytes: float

    @property
    def median(self) -> float:
        """Median wall seconds."""
        return statistics.median(self.seconds)


def main() -> int:
    """Measure and print; return 1 when a bound is broken."""
    parser = argparse.ArgumentParser(description="Start-up time of schedctl queue list.")
    parser.add_argument("--runs", type=int, default=30, help="measured runs of each command")
    parser.add_argument("--no-kaggle", action="store_true", help="leave out what has to be installed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-cli-") as folder:
        config = fill_queue(Path(folder))
        script = Path(sys.executable).with_name("schedctl")
        programs = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "schedctl queue list --json": [str(script), "--config", str(config), "queue", "list", "--json"],
        }
        kaggle = None if options.no_kaggle else install_kaggle(Path(folder))
        if kaggle is not None:
            programs["kaggle quota --help"] = [str(kaggle), "quota", "--help"]
        figures = measure(programs, options.runs)
    report(figures)
    ours = figures[1]
    within = ours.median <= BOUND_SECONDS and ours.megabytes <= BOUND_MEGABYTES
    print(f"bounds of {BOUND_SECONDS * 1_000:.0f} ms and {BOUND_MEGABYTES} MB: {'held' if within else 'BROKEN'}")
    return 0 if within else 1


def fill_queue(folder: Path) -> Path:
    """Make settings and a database with many queued jobs, each with a reason to wait; return the settings file."""
    from jobs.spec import JobSpec
    from scheduler.core.plan import Deferral, Plan
    from scheduler.core.reasons import QuotaEmpty
    from scheduler.store import jobs, plans
    from scheduler.store.engine import open_database

    now = 1_790_000_000
    names = [f"job-{number:04d}" for number in range(JOBS)]
    database = open_database(f"sqlite:///{folder}/scheduler.db", create=True)
    with database.write() as tx:
        for name in names:
            jobs.add(tx, JobSpec(name, "manager", ("python", "train.py"), 1_000, 100.0), now)
        reason = QuotaEmpty("kaggle", "GPU hours of the week", now + 3_600)
        plans.save(tx, Plan(now, (), tuple(Deferral(name, reason) for name in names)), now)
    database.close()
    config = folder / "config.toml"
    config.write_text(f'state_dir = "{folder}"\n', encoding="utf-8")
    return config


def install_kaggle(folder: Path) -> Path | None:
    """Install the Kaggle client into an environment of its own and return its program; None when that fails."""
    place = folder / "kaggle"
    print(f"installing {' '.join(KAGGLE)} into a throw-away environment ...", flush=True)
    venv.create(place, with_pip=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *KAGGLE]
    done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        print(f"SKIPPED: kaggle quota --help. It cannot be installed here: {done.stderr.strip()[-300:]}")
        return None
    return place / "bin" / "kaggle"


def measure(programs: dict[str, list[str]], runs: int) -> list[Figure]:
    """Run all programs in turns, so that a busy moment of the machine meets each of them."""
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    megabytes: dict[str, float] = dict.fromkeys(programs, 0.0)
    for number in range(WARM_UP_RUNS + runs):
        for name, words in programs.items():
            wall, resident = run_once(words)
            if number >= WARM_UP_RUNS:
                seconds[name].append(wall)
                megabytes[name] = max(megabytes[name], resident)
    return [Figure(name, tuple(seconds[name]), megabytes[name]) for name in programs]


def run_once(words: list[str]) -> tuple[float, float]:
    """Return wall seconds and peak resident megabytes of one run; raises when the program fails."""
    # The Kaggle client asks for credentials before it answers anything; these are nobody's.
    environment = {**os.environ, "KAGGLE_USERNAME": "nobody", "KAGGLE_KEY": secrets.token_hex(16)}
    # Installers compile packages; of an editable install the warm-up runs do, unless this forbids it.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER, *words]
    timed = subprocess.run(launcher, env=environment, capture_output=True, text=True, check=True, timeout=120)
    wall, kilobytes, code = timed.stdout.split()
    if code != "0":
        raise RuntimeError(f"{' '.join(words)} ended with {code}")
    return float(wall), int(kilobytes) / 1_024


def report(figures: list[Figure]) -> None:
    """Print medians, spread, peak memory, and the ratios of medians to ours."""
    ours = figures[1]
    print(f"{'command':<28} {'median':>8} {'min':>8} {'max':>8} {'peak RSS':>9}  {'ours / this':>11}")
    for figure in figures:
        low, high = min(figure.seconds), max(figure.seconds)
        print(
            f"{figure.name:<28} {figure.median * 1_000:5.1f} ms {low * 1_000:5.1f} ms {high * 1_000:5.1f} ms "
            f"{figure.megabytes:6.1f} MB  {ours.median / figure.median:11.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())
