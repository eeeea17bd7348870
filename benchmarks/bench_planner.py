"""The planner against its bounds and against other schedulers: prints a table, writes benchmarks/out/planner.json.

    python benchmarks/bench_planner.py [--quick] [--only PART] [--seeds N] [--years N] [--weeks N]
    python benchmarks/bench_planner.py --year [--years N] [--weeks N]
    python benchmarks/bench_planner.py --traces [--seeds N] [--jobs N]
    python benchmarks/bench_planner.py TRACE.csv [--online] [--slice N] [--jobs N]

Every figure is a ratio within this run, seeds fixed. The file is written after every part, so that an interrupted run
keeps what it has measured; ``--only PART`` measures that part again and keeps the others. ``--quick`` leaves out what
takes minutes. Progress goes to standard error. With a trace (CSV: submit seconds, duration seconds, GPUs, deadline or
empty, weight or nothing) only a slice of that is planned and compared: with all jobs known from the beginning, or
``--online`` with each hidden until it is submitted and every rule asked again whenever something happens. ``--traces``
does so with synthetic traces, against simple orders.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a script, it imports its own package by path

from scheduler.core.plan import Plan  # noqa: E402
from scheduler.planner.model.value import value  # noqa: E402
from scheduler.planner.planner import Planner, PlannerOptions  # noqa: E402
from scheduler.planner.questions.differ import outlooks  # noqa: E402
from scheduler.planner.verify import verify  # noqa: E402
from tests.lab.planner import figures  # noqa: E402
from tests.lab.planner import replay as online  # noqa: E402
from tests.lab.planner.baselines import OTHERS, ordered  # noqa: E402
from tests.lab.planner.month_figures import month  # noqa: E402
from tests.lab.planner.replay import ONLINE_JOBS, by_daemon, flow_of, rules  # noqa: E402
from tests.lab.planner.speed import speed  # noqa: E402
from tests.lab.planner.trace import JOBS_MAX, BadTrace, read_trace  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.core.snapshot import Snapshot

# Figure -> (at least or at most, how much): the targets this project set itself.
TARGETS: dict[str, tuple[str, float]] = {
    "seed_ratio_min": (">=", 0.99),
    "ratio_50x6_mean": (">=", 0.99),
    "ratio_50x6_worst": (">=", 0.98),
    "steps_over_plain": (">=", 7.0),
    "quick_ms": ("<=", 10.0),
    "polish_ms": ("<=", 150.0),
    "ratio_1000x50_mean": (">=", 0.96),
    "big_seconds": ("<=", 5.0),
    "big_mib": ("<=", 250.0),
    "big_own_mib": ("<=", 60.0),
    "big_ratio": (">=", 0.95),
    "warm_over_cold_1000": ("<=", 0.03),
    "warm_over_cold_10000": ("<=", 0.03),
    "goodput_over_limit": (">=", 0.975),
    "goodput_over_static": (">=", 1.27),
    "flow_over_fifo": ("<=", 0.68),
    "rolling_over_calendar": (">=", 0.98),
    "month_flow_over_density": ("<=", 0.95),
    "busy_flow_over_density": ("<=", 0.90),
    "month_done_share": (">=", 1.0),
    "month_on_time_share": (">=", 1.0),
    "month_idle_share": ("<=", 0.01),
    "month_short_beside_gap_hours": ("<=", 24.0),
    "month_lanes_per_charged_hour": (">=", 1.9),
    "month_broken": ("<=", 0.0),
    "churn_50x6": ("<=", 0.05),
    "churn_1000x50": ("<=", 0.05),
    "deadlines_over_edf": (">=", 1.0),
    "value_over_edf": (">=", 1.3),
    "dispatcher_ratio_min": (">=", 0.85),
    "lane_hours_per_quota_hour": (">=", 1.9),
}

# How many years --year simulates, and months are simulated: one alone tells little.
YEARS = MONTHS = 4

# How many traces of each kind --traces replays, and their jobs: half an hour on two cores.
TRACES, TRACE_JOBS = 16, 100

# The dispatcher without a solver: the worst of these parts is the figure.
ALONE = ("dispatcher_ratio_seeds", "dispatcher_ratio_50x6", "dispatcher_ratio_1000x50")


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured: seeds of the cases by size, simulated years and their weeks, processes at a time."""

    small: range
    large: range
    years: range
    weeks: int
    workers: int


def big_alone(extent: Extent) -> figures.Figures:
    """Run the big case in a process of its own, so that its peak memory is its own."""
    del extent
    command = [sys.executable, __file__, "--big-alone"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    answer: figures.Figures = json.loads(done.stdout)
    return answer


# What takes a machine's time as its figure comes first, one by one; the long ones, which count only hours, come last.
PARTS: dict[str, Callable[[Extent], figures.Figures]] = {
    "speed": lambda _: speed(),
    "seeds": lambda _: figures.seeds(),
    "large": lambda extent: figures.large(extent.large),
    "big": big_alone,
    "warm": lambda _: figures.warm(1_000, 1),
    "warm-10000": lambda _: figures.warm(10_000, 4),
    "lanes": lambda _: figures.lanes(),
    "deadlines": lambda extent: figures.deadlines(extent.large),
    "churn": lambda extent: figures.stability(extent.small[:4]),
    "small": lambda extent: figures.small(extent.small, extent.workers),
    "month": lambda extent: month(range(min(MONTHS, len(extent.small))), extent.workers),
    "years": lambda extent: figures.years(extent.years, extent.weeks, extent.workers),
}
LONG = {"big", "warm-10000", "month", "years"}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, help="plan the jobs of this CSV instead")
    parser.add_argument("--online", action="store_true", help="hide every job of the trace until it is submitted")
    parser.add_argument("--slice", type=int, default=0, metavar="N", help="the N-th jobs of the trace (default 0)")
    sizes = f"{JOBS_MAX:,}, online {ONLINE_JOBS}, of --traces {TRACE_JOBS}"
    parser.add_argument("--jobs", type=int, help=f"how many they are (default {sizes})")
    parser.add_argument("--quick", action="store_true", help=f"skip {', '.join(sorted(LONG))}; half the seeds")
    parser.add_argument("--only", metavar="PART", choices=PARTS, help=f"measure one part: {', '.join(PARTS)}")
    parser.add_argument(
        "--seeds", type=int, help=f"random cases of 50 x 6 (default 8, quick 4); traces of each kind (default {TRACES})"
    )
    parser.add_argument("--year", action="store_true", help="simulate years against first in, first out, seed by seed")
    parser.add_argument("--traces", action="store_true", help="replay synthetic traces online against simple orders")
    parser.add_argument("--years", type=int, help=f"simulated years (default 2, with --year {YEARS})")
    parser.add_argument("--weeks", type=int, default=52, help="weeks in a simulated year (default 52)")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1), help="processes (default 2)")
    parser.add_argument("--big-alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.big_alone:
        print(json.dumps(figures.big()))
        return
    if options.trace is not None:
        if options.online:
            replay_online(options.trace, options.slice, options.jobs or ONLINE_JOBS)
        else:
            replay(options.trace, options.slice, options.jobs or JOBS_MAX)
        return
    if options.year:
        report_years(options.years or YEARS, options.weeks, max(1, options.workers))
        return
    if options.traces:
        report_traces(options.seeds or TRACES, options.jobs or TRACE_JOBS, max(1, options.workers))
        return
    seeds = options.seeds or (4 if options.quick else 8)
    large = min(3, seeds) if not options.quick else 1
    extent = Extent(range(seeds), range(large), range(options.years or 2), options.weeks, max(1, options.workers))
    chosen = [options.only] if options.only else [name for name in PARTS if not (options.quick and name in LONG)]
    found: dict[str, Any] = written() if options.only else {}
    for number, name in enumerate(chosen, 1):
        figures.say(f"{name} (part {number} of {len(chosen)})")
        started = time.monotonic()
        found |= PARTS[name](extent)
        found.setdefault("part_seconds", {})[name] = round(time.monotonic() - started, 1)
        write(found, seeds)
    report(found)


def written() -> dict[str, Any]:
    """Return what an earlier run has left, or nothing."""
    path = ROOT / "benchmarks" / "out" / "planner.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def write(found: dict[str, Any], seeds: int) -> None:
    """Write what is known so far, and what it was measured on."""
    out = ROOT / "benchmarks" / "out"
    out.mkdir(parents=True, exist_ok=True)
    alone = [found[key] for key in ALONE if key in found]
    if len(alone) == len(ALONE):
        found["dispatcher_ratio_min"] = min(alone)
    facts = {
        "seeds": seeds,
        "machine": f"{platform.machine()}, {platform.system()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version(), "highspy": version("highspy"), "numpy": version("numpy")},
    }
    half = out / "planner.json.part"
    half.write_text(json.dumps(found | facts, indent=2) + "\n", encoding="utf-8")
    half.replace(out / "planner.json")


def report(found: dict[str, Any]) -> None:
    """Print the table."""
    print(f"{'figure':28} {'measured':>10}  target")
    for name, (relation, target) in TARGETS.items():
        if name not in found:
            print(f"{name:28} {'-':>10}  {relation} {target:g}   not measured")
            continue
        met = found[name] >= target if relation == ">=" else found[name] <= target
        print(f"{name:28} {found[name]:10.4f}  {relation} {target:g}{'' if met else '   not met'}")


def report_years(years: int, weeks: int, workers: int) -> None:
    """Simulate and print the table, seed by seed and their mean."""
    rows = figures.against_fifo(range(years), weeks, workers)
    titles = ("flow / FIFO", "tail / FIFO", "goodput / limit", "of FIFO", "done", "by FIFO")
    print(f"{'seed':>4} " + " ".join(f"{title:>15}" for title in titles))
    for row in [*rows, {name: mean(row[name] for row in rows) for name in rows[0]} | {"seed": -1}]:
        seed, *ratios, done, fifo_done = row.values()
        found = " ".join(f"{ratio:15.3f}" for ratio in ratios)
        print(f"{'mean' if seed < 0 else f'{seed:g}':>4} {found} {done:15.1f} {fifo_done:15.1f}")


def report_traces(seeds: int, jobs: int, workers: int) -> None:
    """Replay and print the table, by kind of trace."""
    print(f"{seeds} traces of {jobs} jobs of each kind; flow and value over weighted SRTF's, tail over FIFO's")
    print(f"{'':8} {'flow':>6} {'worst':>6} {'value':>6} {'worst':>6} {'tail':>6}  on time (by weighted SRTF, by EDF)")
    for kind, found in figures.against_orders(range(seeds), jobs, workers).items():
        *ratios, on_time, smith, edf, fewer = found.values()
        table = " ".join(f"{ratio:6.3f}" for ratio in ratios)
        print(f"{kind:8} {table}  {on_time:g} ({smith:g}, {edf:g}); on {fewer:g} traces fewer than EDF")


def replay(path: Path, number: int = 0, jobs: int = JOBS_MAX) -> None:
    """Plan a slice of a trace with all its jobs known, and compare with simpler orders.

    The planner's two rows are what it makes of hours by weight, and as the daemon asks: with urgencies.
    Flow is from submit to completion; what is not done at the horizon counts until then.
    """
    snapshot, found = _slice(path, number, jobs)
    plan = Planner(PlannerOptions(search_steps=0)).plan(snapshot)
    daemon = by_daemon()(snapshot, None)
    bound = plan.bound or float("inf")
    violations = len(verify(snapshot, plan)) + len(verify(snapshot, daemon))
    due = sum(job.deadline is not None for job in snapshot.jobs)
    print(
        f"{path.name}: {len(snapshot.jobs)} of {found} jobs, {due} with a deadline; {len(plan.placements)} sessions, "
        f"{violations} violations"
    )
    plans = {"planner": plan, "daemon": daemon}
    plans |= {name: Plan(snapshot.now, ordered(snapshot, name), ()) for name in OTHERS}
    print(f"{'':10} {'V / bound':>10} {'on time':>8} {'hours':>9} {'done':>6} {'weighted flow':>14} {'flow 95 %':>10}")
    for name, other in plans.items():
        views = outlooks(snapshot, other)
        on_time = sum(bool(job.on_time) for job in views.values())
        hours = sum(placed.end - placed.start for placed in other.placements) / 3_600
        flow = flow_of(snapshot, {job: view.finish for job, view in views.items() if view.finish is not None})
        print(
            f"{name:10} {value(snapshot, other.placements) / bound:10.4f} {on_time:8} {hours:9.1f} {flow.done:6} "
            f"{flow.weighted:12.2f} h {flow.tail:8.1f} h"
        )


def replay_online(path: Path, number: int = 0, jobs: int = ONLINE_JOBS) -> None:
    """Let every rule work through a slice of a trace that it does not know ahead, until all is done."""
    snapshot, found = _slice(path, number, jobs)
    due = sum(job.deadline is not None for job in snapshot.jobs)
    print(f"{path.name}: {len(snapshot.jobs)} of {found} jobs, {due} with a deadline; {len(snapshot.pools)} pools")
    print(f"{'':10} {'V':>10} {'on time':>8} {'weighted flow':>14} {'flow':>10} {'flow 95 %':>10} {'plans':>7}")
    for name, rule in rules().items():
        outcome = online.replay(snapshot, rule())
        flow = outcome.flow
        print(
            f"{name:10} {outcome.value:10.1f} {outcome.on_time:8} {flow.weighted:12.2f} h {flow.mean:8.2f} h "
            f"{flow.tail:8.1f} h {outcome.plans:7}",
            flush=True,
        )


def _slice(path: Path, number: int, jobs: int) -> tuple[Snapshot, int]:
    try:
        return read_trace(path, number, jobs)
    except (BadTrace, OSError) as error:
        sys.exit(f"bench_planner: {error}")


if __name__ == "__main__":
    main()
