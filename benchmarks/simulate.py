"""Simulate the daemon for thousands of weeks, with faults at every point; writes benchmarks/out/simulate.json.

Without options: a short round of every mode. --seed, --steady and --at show one simulation again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice
from math import ceil
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks.simulation.database import Laboratory
from benchmarks.simulation.faults import Fate
from benchmarks.simulation.modes import Tally, exhaustive, pairs, points_of, swarm
from benchmarks.simulation.mutants import MUTANTS, hunt
from benchmarks.simulation.scenario import draw_scenario, steady_scenario
from benchmarks.simulation.simulation import Failure, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_OUT = Path(__file__).parent / "out" / "simulate.json"
_KILL9 = _OUT.with_name("kill9.json")
_REAL = ("kill9_runs", "kill9_duplicates", "kill9_losses", "adoption_seconds_max")
_SWARM_STARTS = 1_000_000  # seeds of `make test` lie below
_MUTANT_SEEDS = range(1, 61)
_WEEKS_OF_A_SEED = 1.15  # of those with faults: the rest is the calm at the end
_PORTION = 8  # simulations in one task
_TOLD_EVERY_SECONDS = 15

_Answer = TypeVar("_Answer")
_Task = tuple["Callable[..., _Answer]", tuple[Any, ...]]


def main() -> int:
    """Run what the command line asks for; 1 when a promise was broken."""
    arguments = _parse()
    if arguments.seed is not None or arguments.steady:
        return _replay(arguments)
    weeks, swarmed, crashed, paired = arguments.weeks, Tally(), Tally(), Tally()
    with ProcessPoolExecutor(max_workers=arguments.workers) as workers:
        for share in _spread(workers, "swarm", list(_swarm_tasks(weeks, arguments.total_weeks)), arguments.workers):
            swarmed.add(_told(share))
        points = workers.submit(_points, weeks).result()
        for share in _spread(
            workers, "every point", list(_crash_tasks(weeks, points, arguments.every_point)), arguments.workers
        ):
            crashed.add(_told(share))
        for share in _spread(workers, "pairs", list(_pair_tasks(weeks, arguments.pairs)), arguments.workers):
            paired.add(_told(share))
        hunts: list[_Task[bool]] = [(_is_caught, (number,)) for number in range(len(MUTANTS))]
        caught = sum(_spread(workers, "mutants", hunts, arguments.workers))
    figures: dict[str, Any] = {
        "weeks": round(swarmed.weeks),
        "simulations": swarmed.simulations,
        "violations": len(swarmed.failures) + len(paired.failures),
        "mutants": len(MUTANTS),
        "mutants_caught": caught,
        "weeks_per_second_per_core": round(swarmed.weeks / max(swarmed.cpu_seconds, 1e-9), 2),
        "crash_points": crashed.simulations,
        "crash_failures": len(crashed.failures),
        "pairs": paired.simulations,
        "never_met": swarmed.never_met,
    }
    # The figures of real processes that are killed come from benchmarks/kill9.py.
    real = json.loads(_KILL9.read_text()) if _KILL9.exists() else {}
    figures.update({name: real.get(name) for name in _REAL})
    _OUT.parent.mkdir(exist_ok=True)
    _OUT.write_text(json.dumps(figures, indent=1) + "\n")
    for name, value in figures.items():
        print(f"{name:28} {value}")
    if not real:
        print(f"{_KILL9} is missing: `make kill9` makes the last four figures")
    broken = figures["violations"] or figures["crash_failures"] or caught < len(MUTANTS) or swarmed.never_met
    return 1 if broken else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-weeks", type=float, default=100, help="simulated weeks of the swarm")
    parser.add_argument("--weeks", type=float, default=2.0, help="weeks with faults in each simulation")
    parser.add_argument("--every-point", type=int, default=20, help="crash at every n-th point of the steady scenario")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of points")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes; one for each core")
    parser.add_argument("--seed", type=int, help="show one seed again")
    parser.add_argument("--steady", action="store_true", help="show the steady scenario again")
    parser.add_argument("--at", action="append", default=[], metavar="POINT:FATE", help="with --steady: a forced fate")
    return parser.parse_args()


def _spread(workers: ProcessPoolExecutor, what: str, tasks: Sequence[_Task[_Answer]], count: int) -> Iterator[_Answer]:
    """Yield what the tasks answer, in any order; tell now and then how far they are and how long they will take."""
    began = told = monotonic()
    left = iter(tasks)
    running = {workers.submit(work, *arguments) for work, arguments in islice(left, 2 * count)}
    done = 0
    while running:
        ended, running = wait(running, return_when=FIRST_COMPLETED)
        running |= {workers.submit(work, *arguments) for work, arguments in islice(left, len(ended))}
        for future in ended:
            done += 1
            yield future.result()
        if monotonic() - told > _TOLD_EVERY_SECONDS:
            told = monotonic()
            minutes = (told - began) / done * (len(tasks) - done) / 60
            print(f"{what}: {done} of {len(tasks)} tasks, {minutes:.1f} minutes left", file=sys.stderr)
    print(f"{what}: {monotonic() - began:.0f} s", file=sys.stderr)


def _swarm_tasks(weeks: float, wanted: float) -> Iterator[_Task[Tally]]:
    seeds = iter(range(_SWARM_STARTS, _SWARM_STARTS + ceil(wanted / (weeks * _WEEKS_OF_A_SEED))))
    while portion := list(islice(seeds, _PORTION)):
        yield _swarm, (portion, weeks)


def _crash_tasks(weeks: float, points: int, step: int) -> Iterator[_Task[Tally]]:
    for fate, every in ((Fate.CRASH, step), (Fate.ERROR, 4 * step)):
        chosen = iter(range(1, points + 1, every))
        while portion := list(islice(chosen, _PORTION)):
            yield _crashes, (portion, weeks, fate)


def _pair_tasks(weeks: float, wanted: int) -> Iterator[_Task[Tally]]:
    for number in range(0, wanted, _PORTION):
        yield _pairs, (min(_PORTION, wanted - number), weeks, number)


def _replay(arguments: argparse.Namespace) -> int:
    forced = (entry.split(":") for entry in arguments.at)
    script = {int(point): Fate(fate) for point, fate in forced}
    scenario = steady_scenario(arguments.weeks) if arguments.steady else draw_scenario(arguments.seed, arguments.weeks)
    with Laboratory() as laboratory:
        try:
            print(Simulation(laboratory, scenario, script).run())
        except Failure as failure:
            print(failure.report())
            return 1
    return 0


def _told(tally: Tally) -> Tally:
    for failure in tally.failures:
        print(failure.report(), file=sys.stderr)
    return tally


def _swarm(seeds: Sequence[int], weeks: float) -> Tally:
    with Laboratory() as laboratory:
        return swarm(laboratory, seeds, weeks)


def _points(weeks: float) -> int:
    with Laboratory() as laboratory:
        return points_of(laboratory, weeks)


def _crashes(points: Sequence[int], weeks: float, fate: Fate) -> Tally:
    with Laboratory() as laboratory:
        return exhaustive(laboratory, weeks, fate, points)


def _pairs(count: int, weeks: float, seed: int) -> Tally:
    with Laboratory() as laboratory:
        return pairs(laboratory, weeks, count, seed=seed)


def _is_caught(number: int) -> bool:
    mutant = MUTANTS[number]
    with Laboratory() as laboratory:
        failure = hunt(laboratory, mutant, _MUTANT_SEEDS)
    if failure is None:
        print(f"mutant survives: {mutant.name} ({mutant.breaks})", file=sys.stderr)
    return failure is not None


if __name__ == "__main__":
    began = monotonic()
    status = main()
    print(f"{monotonic() - began:.0f} s")
    sys.exit(status)
