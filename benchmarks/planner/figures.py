"""Figures: each a ratio within one run, with what it was measured on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean

from benchmarks.planner import closed_loop
from benchmarks.planner.backfill import backfill
from benchmarks.planner.baselines import OTHERS, ordered, static_week
from benchmarks.planner.cases import EPOCH, KAGGLE, MIX, SMALL_MIX, make_pools, random_case, seed_case
from jobs.spec import Needs
from scheduler.core.plan import Plan
from scheduler.core.snapshot import JobView, PoolView, Rate, Snapshot
from scheduler.core.window import DAY, HOUR, WEEK
from scheduler.planner import Options, Planner, dispatch, value, verify
from scheduler.planner.case import make_case
from scheduler.planner.differ import churn, outlooks
from scheduler.planner.grid import make_grid
from scheduler.planner.layers import FORESIGHT_SECONDS
from scheduler.planner.linear import build, hopeful
from scheduler.planner.solver import Solver

Figures = dict[str, float]

SOFT = Options(firm_deadlines=False)
UNSEARCHED = replace(SOFT, search_steps=0)
DISPATCHER = replace(UNSEARCHED, linear=False)
AS_THE_DAEMON = replace(UNSEARCHED, foresight_seconds=FORESIGHT_SECONDS)


def ratio(snapshot: Snapshot, options: Options) -> tuple[float, float, float]:
    """Return V / bound of all layers, V / bound of the dispatcher alone, and seconds; every plan is verified."""
    started = time.perf_counter()
    plan = Planner(options).plan(snapshot)
    seconds = time.perf_counter() - started
    alone = Planner(DISPATCHER).plan(snapshot)
    if plan.bound is None or verify(snapshot, plan) or verify(snapshot, alone):
        raise AssertionError(f"no valid plan: {plan.warnings}")
    return plan.value / plan.bound, alone.value / plan.bound, seconds


def quality(small_seeds: range, large_seeds: range) -> Iterator[Figures]:
    """Seed cases, 50 x 6 and 1,000 x 50: V / bound of all layers and of the dispatcher alone."""
    alone = []
    seeds, static = [], []
    for weeks, gated in ((1, False), (1, True), (4, False), (4, True)):
        snapshot = seed_case(weeks, gated=gated)
        reached, dispatched, seconds = ratio(snapshot, SOFT)
        plain = dispatch(snapshot).value
        bound = Planner(UNSEARCHED).plan(snapshot).bound or 1.0
        static.append(value(snapshot, static_week(snapshot)) / bound)
        print(
            f"  seed {weeks} week{'s' * (weeks > 1)}{', gate' * gated}: {reached:.4f} of the bound in {seconds:.2f} s;"
            f" static {static[-1]:.3f}, density {plain / bound:.3f}, no solver {dispatched:.3f}"
        )
        seeds.append((reached, seconds))
        alone.append(dispatched)
    yield {"seed_ratio_min": min(r for r, _ in seeds), "seed_seconds_max": max(s for _, s in seeds)}
    small = []
    for seed in small_seeds:
        reached, dispatched, seconds = ratio(random_case(50, make_pools(SMALL_MIX), seed), SOFT)
        small.append(reached)
        alone.append(dispatched)
        print(f"  50 x 6, seed {seed}: {reached:.4f} in {seconds:.2f} s; no solver {dispatched:.3f}")
    yield {"ratio_50x6_mean": mean(small), "ratio_50x6_worst": min(small)}
    large = []
    for seed in large_seeds:
        snapshot = random_case(1_000, make_pools(MIX), seed)
        reached, dispatched, seconds = ratio(snapshot, UNSEARCHED)
        large.append((reached, seconds))
        alone.append(dispatched)
        bound = Planner(UNSEARCHED).plan(snapshot).bound or 1.0
        others = {name: value(snapshot, ordered(snapshot, name)) / bound for name in OTHERS}
        print(
            f"  1,000 x 50, seed {seed}: {reached:.4f} in {seconds:.2f} s; no solver {dispatched:.3f}; "
            + ", ".join(f"{name} {found:.3f}" for name, found in others.items())
        )
    yield {"ratio_1000x50_mean": mean(r for r, _ in large), "ratio_1000x50_seconds": max(s for _, s in large)}
    yield {"dispatcher_ratio_min": min(alone)}


def deadlines(seeds: range) -> Figures:
    """Jobs on time and value, against earliest deadline first, at 1,000 x 50."""
    on_time, values = [], []
    for seed in seeds:
        snapshot = random_case(1_000, make_pools(MIX), seed)
        plan = Planner(Options(search_steps=0)).plan(snapshot)
        edf = Plan(snapshot.now, ordered(snapshot, "edf"), ())
        due = [job.name for job in snapshot.jobs if job.deadline is not None]
        ours, theirs = (sum(bool(found.on_time) for found in outlooks(snapshot, p).values()) for p in (plan, edf))
        on_time.append(ours / theirs)
        values.append(plan.value / value(snapshot, edf.placements))
        print(f"  1,000 x 50, seed {seed}: {ours} of {len(due)} on time, EDF {theirs}; value {values[-1]:.2f} x EDF's")
    return {"deadlines_over_edf": mean(on_time), "value_over_edf": mean(values)}


def stability(small_seeds: range) -> Figures:
    """Share of the next 72 h that moves when speeds change by 3 % and one weight in a hundred by half."""

    def moved(snapshot: Snapshot, options: Options) -> float:
        rng = Random(7)
        changed = replace(snapshot, jobs=tuple(_wobbled(job, rng) for job in snapshot.jobs))
        before = Planner(options).plan(snapshot)
        after = Planner(options).plan(changed, before)
        return churn(before, after, EPOCH, EPOCH + 3 * DAY)

    small = [
        moved(random_case(50, make_pools(SMALL_MIX), seed), replace(SOFT, search_steps=50)) for seed in small_seeds
    ]
    large = moved(random_case(1_000, make_pools(MIX), 0), UNSEARCHED)
    return {"churn_50x6": mean(small), "churn_1000x50": large}


def _wobbled(job: JobView, rng: Random) -> JobView:
    factor = rng.gauss(1.0, 0.03)
    rates = {pool: Rate(rate.steps_per_second * factor) for pool, rate in job.rates.items()}
    weight = job.weight * (1.5 if rng.random() < 0.01 else 1.0)
    return replace(job, rates=rates, weight=weight)


def warm(jobs: int, copies: int) -> float:
    """Return the time to solve again after one job in a hundred changed, over the time of the first solution."""
    snapshot = random_case(jobs, make_pools(MIX, copies), 0)
    case = make_case(snapshot, firm_deadlines=False)
    rng = Random(3)
    changed = tuple(replace(job, weight=job.weight * 1.2) if rng.random() < 0.01 else job for job in snapshot.jobs)
    again = make_case(replace(snapshot, jobs=changed), firm_deadlines=False)
    solver = Solver(600.0)
    programmes = [build(found, make_grid(found), hopeful(found)) for found in (case, again)]
    seconds = []
    for programme in programmes:
        started = time.perf_counter()
        solver.solve(programme)
        seconds.append(time.perf_counter() - started)
    print(f"  {jobs:,} jobs: cold {seconds[0]:.2f} s, warm {seconds[1] * 1e3:.0f} ms")
    return seconds[1] / seconds[0]


def big() -> Figures:
    """100,000 jobs on 1,000 pools: seconds, peak memory, proved ratio."""
    snapshot = random_case(100_000, make_pools(MIX, 20), 0)
    started = time.perf_counter()
    plan = Planner(UNSEARCHED).plan(snapshot)
    seconds = time.perf_counter() - started
    # A child's ru_maxrss starts at what its parent had when it was made; the kernel's high-water mark is its own.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    mib = int(status.split("VmHWM:")[1].split()[0]) / 1_024
    return {"big_seconds": seconds, "big_mib": mib, "big_ratio": plan.value / (plan.bound or float("inf"))}


def lanes() -> Figures:
    """Lane-hours that managers get out of a Kaggle quota hour when two share a session."""
    pool = replace(KAGGLE, devices_per_session=2)
    managers = tuple(
        JobView(f"m{n}", 1.0, 40 * HOUR, 0, Needs(), {"kaggle": Rate(1.0)}, {"kaggle": 720}, {"kaggle": 0})
        for n in range(6)
    )
    plan = Planner(SOFT).plan(Snapshot(EPOCH, managers, (PoolView(pool),), WEEK))
    charged = sum(placement.end - placement.start for placement in plan.placements)
    seats = sum((placement.end - placement.start) * len(placement.seats) for placement in plan.placements)
    return {"lane_hours_per_quota_hour": seats / charged}


def years(seeds: range, weeks: int) -> Figures:
    """A stochastic year, replanned at every event, against the static week and first in, first out."""
    rows: dict[str, list[closed_loop.Year]] = {}
    for seed in seeds:
        for name, decide, rolling in (
            ("planner", closed_loop.planner(AS_THE_DAEMON), False),
            ("static", None, False),
            ("fifo", closed_loop.first_in_first_out, False),
            ("backfill", backfill, False),
            ("rolling", closed_loop.planner(AS_THE_DAEMON), True),
        ):
            simulation = closed_loop.Simulation(seed, weeks, decide, rolling=rolling)
            year = simulation.run()
            rows.setdefault(name, []).append(year)
            broken = closed_loop.overdrawn(simulation)
            print(
                f"  seed {seed}, {name}: goodput {year.goodput:.3f}, {year.goodput / year.limit:.3f} of the limit, "
                f"charged {year.charged_seconds / year.quota_seconds:.3f}, "
                f"weighted flow {year.weighted_flow_days:.1f} d, {year.finished} done, {broken} windows overdrawn",
                flush=True,
            )

    def averaged(name: str) -> float:
        return mean(year.goodput for year in rows[name])

    def flow(name: str) -> float:
        return mean(year.weighted_flow_days for year in rows[name])

    of_limit = mean(year.goodput / year.limit for year in rows["planner"])
    return {
        "goodput_over_limit": of_limit,
        "goodput_over_window_limit": of_limit / closed_loop.windows_over_endless(),
        "goodput_over_static": averaged("planner") / averaged("static"),
        "goodput_over_backfill": averaged("planner") / averaged("backfill"),
        "flow_over_fifo": flow("planner") / flow("fifo"),
        "flow_over_backfill": flow("planner") / flow("backfill"),
        "rolling_over_calendar": averaged("rolling") / averaged("planner"),
    }
