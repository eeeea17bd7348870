"""The planner against its bounds and against other schedulers: prints a table, writes benchmarks/out/planner.json.

    python benchmarks/bench_planner.py [--quick] [--seeds N] [--weeks N] [TRACE.csv]

Every figure is a ratio within this run, seeds fixed. ``--quick`` leaves out what takes minutes. With a trace (CSV:
submit seconds, duration seconds, GPUs, deadline or empty) only that is planned and compared.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a script, it imports its own package by path

from benchmarks.planner import figures  # noqa: E402
from benchmarks.planner.baselines import OTHERS, ordered  # noqa: E402
from benchmarks.planner.trace import BadTrace, read_trace  # noqa: E402
from scheduler.core.plan import Plan  # noqa: E402
from scheduler.planner import Options, Planner, value, verify  # noqa: E402
from scheduler.planner.differ import outlooks  # noqa: E402

# Figure -> (at least or at most, how much): the targets this project set itself.
TARGETS: dict[str, tuple[str, float]] = {
    "seed_ratio_min": (">=", 0.99),
    "ratio_50x6_mean": (">=", 0.99),
    "ratio_50x6_worst": (">=", 0.98),
    "ratio_1000x50_mean": (">=", 0.96),
    "big_seconds": ("<=", 8.0),
    "big_mib": ("<=", 250.0),
    "big_ratio": (">=", 0.93),
    "warm_over_cold_1000": ("<=", 0.03),
    "warm_over_cold_10000": ("<=", 0.03),
    "goodput_over_limit": (">=", 0.975),
    "goodput_over_static": (">=", 1.27),
    "flow_over_fifo": ("<=", 0.68),
    "rolling_over_calendar": (">=", 0.98),
    "churn_50x6": ("<=", 0.05),
    "churn_1000x50": ("<=", 0.05),
    "deadlines_over_edf": (">=", 1.0),
    "value_over_edf": (">=", 1.3),
    "dispatcher_ratio_min": (">=", 0.85),
    "lane_hours_per_quota_hour": (">=", 1.9),
}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, help="plan the jobs of this CSV instead")
    parser.add_argument("--quick", action="store_true", help="skip the year, the big case and the 10,000-job solve")
    parser.add_argument("--seeds", type=int, default=8, help="random cases of 50 x 6 (default 8)")
    parser.add_argument("--years", type=int, default=2, help="simulated years (default 2)")
    parser.add_argument("--weeks", type=int, default=52, help="weeks in a simulated year (default 52)")
    parser.add_argument("--only-big", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_big:
        print(json.dumps(figures.big()))
        return
    if options.trace is not None:
        replay(options.trace)
        return
    found: figures.Figures = {}
    large = range(min(3, options.seeds))
    for some in figures.quality(range(options.seeds), large):
        found |= some
    found |= figures.deadlines(large)
    found |= figures.stability(range(min(4, options.seeds)))
    found |= figures.lanes()
    found["warm_over_cold_1000"] = figures.warm(1_000, 1)
    if not options.quick:
        found["warm_over_cold_10000"] = figures.warm(10_000, 4)
        found |= in_a_process_of_its_own()
        found |= figures.years(range(options.years), options.weeks)
    report(found, options.seeds)


def in_a_process_of_its_own() -> figures.Figures:
    """Run the big case alone, so that its peak memory is its own."""
    command = [sys.executable, __file__, "--only-big"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    answer: figures.Figures = json.loads(done.stdout)
    return answer


def report(found: figures.Figures, seeds: int) -> None:
    """Print the table and write the file."""
    print(f"\n{'figure':28} {'measured':>10}  target")
    for name, (relation, target) in TARGETS.items():
        if name in found:
            met = found[name] >= target if relation == ">=" else found[name] <= target
            print(f"{name:28} {found[name]:10.4f}  {relation} {target:g}{'' if met else '   not met'}")
    out = ROOT / "benchmarks" / "out"
    out.mkdir(parents=True, exist_ok=True)
    facts = {
        "seeds": seeds,
        "machine": f"{platform.machine()}, {platform.system()}",
        "versions": {"python": platform.python_version(), "highspy": version("highspy"), "numpy": version("numpy")},
    }
    (out / "planner.json").write_text(json.dumps(found | facts, indent=2) + "\n", encoding="utf-8")


def replay(path: Path) -> None:
    """Plan a trace and compare with simpler orders."""
    try:
        snapshot, found = read_trace(path)
    except (BadTrace, OSError) as error:
        sys.exit(f"bench_planner: {error}")
    plan = Planner(Options(search_steps=0)).plan(snapshot)
    bound = plan.bound or float("inf")
    violations = len(verify(snapshot, plan))
    jobs = (
        f"{len(snapshot.jobs)} jobs" if found == len(snapshot.jobs) else f"first {len(snapshot.jobs)} of {found} jobs"
    )
    due = sum(job.deadline is not None for job in snapshot.jobs)
    print(f"{path.name}: {jobs}, {due} with a deadline; {len(plan.placements)} sessions, {violations} violations")
    plans = {"planner": plan} | {name: Plan(snapshot.now, ordered(snapshot, name), ()) for name in OTHERS}
    print(f"{'':10} {'V / bound':>10} {'on time':>8} {'hours':>9}")
    for name, other in plans.items():
        on_time = sum(bool(job.on_time) for job in outlooks(snapshot, other).values())
        hours = sum(placed.end - placed.start for placed in other.placements) / 3_600
        print(f"{name:10} {value(snapshot, other.placements) / bound:10.4f} {on_time:8} {hours:9.1f}")


if __name__ == "__main__":
    main()
