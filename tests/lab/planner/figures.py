"""Figures: each a ratio within one run, with what it was measured on."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import TYPE_CHECKING, TypeVar

from jobs.nouns.window import DAY, HOUR, WEEK
from jobs.spec import Needs
from scheduler.core.plan import Plan
from scheduler.core.snapshot import JobView, PoolView, Rate, Snapshot
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.lp.grid import make_grid
from scheduler.planner.lp.linear import build, plannable_jobs
from scheduler.planner.lp.solver import Solver
from scheduler.planner.model.case import make_case
from scheduler.planner.model.value import value
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.planner.questions.differ import outlooks
from scheduler.planner.verify import verify
from tests.lab.planner import closed_loop
from tests.lab.planner.backfill import backfill
from tests.lab.planner.baselines import OTHERS, ordered, static_week
from tests.lab.planner.cases import EPOCH, KAGGLE, MIX, SMALL_MIX, make_pools, random_case, seed_case
from tests.lab.planner.churn import churn
from tests.lab.planner.flow_limit import least_flow_days
from tests.lab.planner.replay import Outcome, replay, rules
from tests.lab.planner.synthetic import KINDS, Kind, synthetic
from tests.lab.planner.trace import on_our_pools
from tests.lab.planner.year import Year

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Figures = dict[str, float]
A = TypeVar("A")
B = TypeVar("B")

SOFT = PlannerOptions(firm_deadlines=False)
UNSEARCHED = replace(SOFT, search_steps=0)
DISPATCHER = replace(UNSEARCHED, linear=False)


def say(line: str) -> None:
    """Tell how far the run is; the table has standard output to itself."""
    print(line, file=sys.stderr, flush=True)


def shared_out(work: Callable[[A], B], tasks: Sequence[A], workers: int) -> list[B]:
    """Return what ``work`` makes of each task, in order, with so many processes; nothing in it may be a duration."""
    if workers == 1:
        return [work(task) for task in tasks]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(work, tasks))


def ratio(snapshot: Snapshot, options: PlannerOptions) -> tuple[float, float, float]:
    """Return V / bound of all layers, V / bound of the dispatcher alone, and seconds; every plan is verified.

    Seconds are the processor's: the planner uses one thread, so they are the clock's on a machine with nothing else
    to do, and hold on a busy one.
    """
    started = time.process_time()
    plan = Planner(options).plan(snapshot)
    seconds = time.process_time() - started
    alone = Planner(DISPATCHER).plan(snapshot)
    if plan.bound is None or verify(snapshot, plan) or verify(snapshot, alone):
        raise AssertionError(f"no valid plan: {plan.warnings}")
    return plan.value / plan.bound, alone.value / plan.bound, seconds


def seeds() -> Figures:
    """The seeds' own weeks: V / bound of all layers and of the dispatcher alone."""
    found = []
    for weeks, gated in ((1, False), (1, True), (4, False), (4, True)):
        snapshot = seed_case(weeks, gated=gated)
        reached, alone, seconds = ratio(snapshot, SOFT)
        bound = Planner(UNSEARCHED).plan(snapshot).bound or 1.0
        static = value(snapshot, static_week(snapshot)) / bound
        say(
            f"  {weeks} week{'s' * (weeks > 1)}{', gate' * gated}: {reached:.4f} of the bound in {seconds:.2f} s;"
            f" static {static:.3f}, density {dispatch(snapshot).value / bound:.3f}, no solver {alone:.3f}"
        )
        found.append((reached, alone, seconds))
    return {
        "seed_ratio_min": min(reached for reached, _, _ in found),
        "seed_seconds_max": max(seconds for _, _, seconds in found),
        "dispatcher_ratio_seeds": min(alone for _, alone, _ in found),
    }


def small(cases: Sequence[int], workers: int = 1) -> Figures:
    """50 jobs on 6 pools: V / bound of all layers and of the dispatcher alone."""
    found = shared_out(_small, cases, workers)
    return {
        "ratio_50x6_mean": mean(reached for reached, _, _ in found),
        "ratio_50x6_worst": min(reached for reached, _, _ in found),
        "ratio_50x6_seconds": max(seconds for _, _, seconds in found),
        "dispatcher_ratio_50x6": min(alone for _, alone, _ in found),
    }


def _small(seed: int) -> tuple[float, float, float]:
    reached, alone, seconds = ratio(random_case(50, make_pools(SMALL_MIX), seed), SOFT)
    say(f"  50 x 6, seed {seed}: {reached:.4f} in {seconds:.2f} s; no solver {alone:.3f}")
    return reached, alone, seconds


def large(cases: Sequence[int]) -> Figures:
    """1,000 jobs on 50 pools, from nothing: V / bound of all layers and of the dispatcher alone."""
    found = []
    for seed in cases:
        snapshot = random_case(1_000, make_pools(MIX), seed)
        reached, alone, seconds = ratio(snapshot, UNSEARCHED)
        bound = Planner(UNSEARCHED).plan(snapshot).bound or 1.0
        others = {name: value(snapshot, ordered(snapshot, name)) / bound for name in OTHERS}
        say(
            f"  1,000 x 50, seed {seed}: {reached:.4f} in {seconds:.2f} s; no solver {alone:.3f}; "
            + ", ".join(f"{name} {other:.3f}" for name, other in others.items())
        )
        found.append((reached, alone, seconds))
    return {
        "ratio_1000x50_mean": mean(reached for reached, _, _ in found),
        "ratio_1000x50_seconds": max(seconds for _, _, seconds in found),
        "dispatcher_ratio_1000x50": min(alone for _, alone, _ in found),
    }


def deadlines(cases: Sequence[int]) -> Figures:
    """Jobs on time and value, against earliest deadline first, at 1,000 x 50."""
    on_time, values = [], []
    for seed in cases:
        snapshot = random_case(1_000, make_pools(MIX), seed)
        plan = Planner(PlannerOptions(search_steps=0)).plan(snapshot)
        edf = Plan(snapshot.now, ordered(snapshot, "edf"), ())
        due = [job.name for job in snapshot.jobs if job.deadline is not None]
        ours, theirs = (sum(bool(found.on_time) for found in outlooks(snapshot, p).values()) for p in (plan, edf))
        on_time.append(ours / theirs)
        values.append(plan.value / value(snapshot, edf.placements))
        say(f"  1,000 x 50, seed {seed}: {ours} of {len(due)} on time, EDF {theirs}; value {values[-1]:.2f} x EDF's")
    return {"deadlines_over_edf": mean(on_time), "value_over_edf": mean(values)}


def stability(cases: Sequence[int]) -> Figures:
    """Share of the next 72 h that moves when speeds change by 3 % and one weight in a hundred by half."""

    def moved(snapshot: Snapshot, options: PlannerOptions) -> float:
        rng = Random(7)
        changed = replace(snapshot, jobs=tuple(_wobbled(job, rng) for job in snapshot.jobs))
        before = Planner(options).plan(snapshot)
        after = Planner(options).plan(changed, before)
        return churn(before, after, EPOCH, EPOCH + 3 * DAY)

    small = [moved(random_case(50, make_pools(SMALL_MIX), seed), SOFT) for seed in cases]
    large = [moved(random_case(1_000, make_pools(MIX), seed), UNSEARCHED) for seed in cases]
    return {"churn_50x6": mean(small), "churn_1000x50": mean(large)}


def _wobbled(job: JobView, rng: Random) -> JobView:
    factor = rng.gauss(1.0, 0.03)
    rates = {pool: Rate(rate.steps_per_second * factor) for pool, rate in job.rates.items()}
    weight = job.weight * (1.5 if rng.random() < 0.01 else 1.0)
    return replace(job, rates=rates, weight=weight)


WARM_REPEATS = 7


def warm(jobs: int, copies: int) -> Figures:
    """Solve again and again after one job in a hundred changed its weight, against the first solution, in CPU time."""
    snapshot = random_case(jobs, make_pools(MIX, copies), 0)
    rng = Random(3)
    solver = Solver(600.0)
    cold, again = _solved(solver, snapshot), []
    for _ in range(WARM_REPEATS):
        snapshot = _reweighted(snapshot, rng)  # against the one before, as one replanning follows another
        again.append(_solved(solver, snapshot))
    say(f"  {jobs:,} jobs: cold {cold:.2f} s, warm {', '.join(f'{seconds * 1e3:.0f}' for seconds in again)} ms")
    return {f"warm_over_cold_{jobs}": median(again) / cold}


def _reweighted(snapshot: Snapshot, rng: Random) -> Snapshot:
    jobs = tuple(replace(job, weight=job.weight * 1.2) if rng.random() < 0.01 else job for job in snapshot.jobs)
    return replace(snapshot, jobs=jobs)


def _solved(solver: Solver, snapshot: Snapshot) -> float:
    """Return the processor's seconds that ``solver`` takes; the programme is made before."""
    case = make_case(snapshot, firm_deadlines=False)
    programme = build(case, make_grid(case), plannable_jobs(case))
    started = time.process_time()
    solver.solve(programme)
    return time.process_time() - started


def big() -> Figures:
    """100,000 jobs on 1,000 pools: seconds, peak memory and the planner's own part of it, proved ratio."""
    snapshot = random_case(100_000, make_pools(MIX, 20), 0)
    before = _mib("VmRSS")
    started, worked = time.perf_counter(), time.process_time()
    plan = Planner(UNSEARCHED).plan(snapshot)
    seconds, worked = time.perf_counter() - started, time.process_time() - worked
    mib = _mib("VmHWM")
    say(f"  100,000 x 1,000: {seconds:.1f} s by the clock, {worked:.1f} s of the processor")
    return {
        "big_seconds": seconds,
        "big_cpu_seconds": worked,
        "big_mib": mib,
        "big_own_mib": mib - before,
        "big_ratio": plan.value / (plan.bound or float("inf")),
    }


def _mib(what: str) -> float:
    """Return what the kernel says of this process; its ru_maxrss starts at what the parent had when it was made."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split(f"{what}:")[1].split()[0]) / 1_024


def lanes() -> Figures:
    """Lane-hours that managers get out of a Kaggle quota hour when two share a session."""
    pool = replace(KAGGLE, devices_per_session=2)
    managers = tuple(
        JobView(f"m{n}", 1.0, 40 * HOUR, 0, Needs(), {"kaggle": Rate(1.0)}, {"kaggle": 720}, {"kaggle": 0})
        for n in range(6)
    )
    plan = Planner(SOFT).plan(Snapshot(EPOCH, managers, (PoolView(pool),), WEEK))
    charged = sum(placement.end - placement.start for placement in plan.placements)
    planned_lanes = sum((placement.end - placement.start) * len(placement.lanes) for placement in plan.placements)
    return {"lane_hours_per_quota_hour": planned_lanes / charged}


def years(cases: Sequence[int], weeks: int, workers: int = 1) -> Figures:
    """A stochastic year, replanned at every event, against the static week and first in, first out."""
    names = ("rolling", "planner", "static", "fifo", "backfill")  # the longest first, so that processes end together
    tasks = [(seed, name) for name in names for seed in cases]
    rows: dict[str, list[Year]] = {}
    for (_, name), year in zip(tasks, shared_out(partial(_year, weeks), tasks, workers), strict=True):
        rows.setdefault(name, []).append(year)

    def averaged(name: str) -> float:
        return mean(year.goodput for year in rows[name])

    def flow(name: str) -> float:
        return mean(year.weighted_flow_days for year in rows[name])

    of_limit = mean(year.goodput / year.limit for year in rows["planner"])
    least = mean(shared_out(partial(_least_flow, weeks), cases, workers))
    return {
        "goodput_over_limit": of_limit,
        "goodput_over_window_limit": of_limit / closed_loop.windows_over_endless(),
        "goodput_over_static": averaged("planner") / averaged("static"),
        "goodput_over_backfill": averaged("planner") / averaged("backfill"),
        "flow_over_fifo": flow("planner") / flow("fifo"),
        "flow_over_backfill": flow("planner") / flow("backfill"),
        "flow_limit_over_fifo": least / flow("fifo"),
        "rolling_over_calendar": averaged("rolling") / averaged("planner"),
    }


def against_fifo(cases: Sequence[int], weeks: int, workers: int = 1) -> list[Figures]:
    """The planner's year against first in, first out in the same year, one row a seed: how long models wait."""
    tasks = [(seed, name) for name in ("planner", "fifo") for seed in cases]
    years = dict(zip(tasks, shared_out(partial(_year, weeks), tasks, workers), strict=True))
    rows = []
    for seed in cases:
        ours, fifo = years[seed, "planner"], years[seed, "fifo"]
        rows.append(
            {
                "seed": seed,
                "flow_over_fifo": ours.weighted_flow_days / fifo.weighted_flow_days,
                "tail_over_fifo": ours.tail_days / fifo.tail_days,
                "goodput_over_limit": ours.goodput / ours.limit,
                "fifo_goodput_over_limit": fifo.goodput / fifo.limit,
                "done": ours.finished,
                "fifo_done": fifo.finished,
            }
        )
    return rows


def against_orders(seeds: Sequence[int], jobs: int, workers: int = 1) -> dict[Kind, Figures]:
    """Synthetic traces online, by their kind: flow and value over weighted SRTF's, tail over FIFO's, jobs on time."""
    names = ("planner", "smith", "edf", "fifo")  # the longest first, so that processes end together
    tasks = [(kind, seed, name) for name in names for kind in KINDS for seed in seeds]
    outcomes = dict(zip(tasks, shared_out(partial(_replayed, jobs), tasks, workers), strict=True))
    rows: dict[Kind, Figures] = {}
    for kind in KINDS:
        traces = [[outcomes[kind, seed, name] for name in names] for seed in seeds]
        flow = [ours.flow.weighted / smith.flow.weighted for ours, smith, _, _ in traces]
        worth = [ours.value / smith.value for ours, smith, _, _ in traces]
        rows[kind] = {
            "flow_over_smith": mean(flow),
            "flow_over_smith_worst": max(flow),
            "value_over_smith": mean(worth),
            "value_over_smith_worst": min(worth),
            "tail_over_fifo": mean(ours.flow.tail / fifo.flow.tail for ours, _, _, fifo in traces),
            "on_time": sum(ours.on_time for ours, _, _, _ in traces),
            "smith_on_time": sum(smith.on_time for _, smith, _, _ in traces),
            "edf_on_time": sum(edf.on_time for _, _, edf, _ in traces),
            "fewer_than_edf": sum(ours.on_time < edf.on_time for ours, _, edf, _ in traces),
        }
    return rows


def _replayed(jobs: int, task: tuple[Kind, int, str]) -> Outcome:
    kind, seed, name = task
    outcome = replay(on_our_pools(synthetic(kind, jobs, seed), jobs), rules()[name]())
    say(f"  {kind}, seed {seed}, {name}: weighted flow {outcome.flow.weighted:.2f} h, {outcome.on_time} on time")
    return outcome


def _least_flow(weeks: int, seed: int) -> float:
    """Return the days that no policy's weighted flow time in the year of ``seed`` is expected to be below."""
    least = least_flow_days(closed_loop.Simulation(seed, weeks, None))
    say(f"  seed {seed}, no policy: weighted flow {least:.1f} d at the least")
    return least


def _year(weeks: int, task: tuple[int, str]) -> Year:
    """Simulate one year under the named policy, and say what it came to."""
    seed, name = task
    decide: dict[str, closed_loop.Decide | None] = {
        "planner": closed_loop.planner(UNSEARCHED),
        "rolling": closed_loop.planner(UNSEARCHED),
        "static": None,
        "fifo": closed_loop.first_in_first_out,
        "backfill": backfill,
    }
    simulation = closed_loop.Simulation(seed, weeks, decide[name], rolling=name == "rolling")
    year = simulation.run()
    say(
        f"  seed {seed}, {name}: goodput {year.goodput:.3f}, {year.goodput / year.limit:.3f} of the limit, "
        f"charged {year.charged_seconds / year.quota_seconds:.3f}, weighted flow {year.weighted_flow_days:.1f} d, "
        f"{year.finished} done, {closed_loop.overdrawn(simulation)} windows overdrawn; "
        + ", ".join(f"{what} {share:.3f}" for what, share in year.shares.items())
    )
    return year
