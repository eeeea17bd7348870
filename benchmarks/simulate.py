"""Simulate the daemon for thousands of weeks, with faults at every point; writes benchmarks/out/simulate.json.

Without options: a short round of every mode. --seed, --steady and --at show one simulation again.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.simulation.database import Laboratory
from benchmarks.simulation.faults import Fate
from benchmarks.simulation.modes import Tally, exhaustive, pairs, points_of, swarm
from benchmarks.simulation.mutants import MUTANTS, hunt
from benchmarks.simulation.scenario import draw_scenario, steady_scenario
from benchmarks.simulation.simulation import Failure, Simulation

_OUT = Path(__file__).parent / "out" / "simulate.json"
_KILL9 = _OUT.with_name("kill9.json")
_REAL = ("kill9_runs", "kill9_duplicates", "kill9_losses", "adoption_seconds_max")
_SWARM_STARTS = 1_000_000  # seeds of `make test` lie below
_MUTANT_SEEDS = range(1, 61)


def main() -> int:
    """Run what the command line asks for; 1 when a promise was broken."""
    arguments = _parse()
    if arguments.seed is not None or arguments.steady:
        return _replay(arguments)
    with ProcessPoolExecutor(max_workers=arguments.cores) as workers:
        every = list(range(arguments.cores))
        tally = Tally()
        wanted = arguments.total_weeks / arguments.cores
        swarmed = workers.map(partial(_swarm_share, cores=arguments.cores, weeks=arguments.weeks, wanted=wanted), every)
        for share in swarmed:
            tally.add(_told(share))
        crash_tally = Tally()
        step = max(1, arguments.every_point)
        crashed = workers.map(partial(_crash_share, cores=arguments.cores, weeks=arguments.weeks, step=step), every)
        for share in crashed:
            crash_tally.add(_told(share))
        pair_tally = Tally()
        for share in workers.map(partial(_pair_share, weeks=arguments.weeks, count=arguments.pairs), every):
            pair_tally.add(_told(share))
        caught = sum(workers.map(_is_caught, range(len(MUTANTS))))
    figures: dict[str, Any] = {
        "weeks": round(tally.weeks),
        "simulations": tally.simulations,
        "violations": len(tally.failures) + len(pair_tally.failures),
        "mutants": len(MUTANTS),
        "mutants_caught": caught,
        "weeks_per_second_per_core": round(tally.weeks / max(tally.cpu_seconds, 1e-9), 2),
        "crash_points": crash_tally.simulations,
        "crash_failures": len(crash_tally.failures),
        "pairs": pair_tally.simulations,
        "never_met": tally.never_met,
    }
    _OUT.parent.mkdir(exist_ok=True)
    # The figures of real processes that are killed come from benchmarks/kill9.py.
    real = json.loads(_KILL9.read_text()) if _KILL9.exists() else {}
    figures.update({name: real[name] for name in _REAL if name in real})
    _OUT.write_text(json.dumps(figures, indent=1) + "\n")
    for name, value in figures.items():
        print(f"{name:28} {value}")
    broken = figures["violations"] or figures["crash_failures"] or caught < len(MUTANTS) or tally.never_met
    return 1 if broken else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-weeks", type=float, default=100, help="simulated weeks of the swarm")
    parser.add_argument("--weeks", type=float, default=2.0, help="weeks with faults in each simulation")
    parser.add_argument("--every-point", type=int, default=20, help="crash at every n-th point of the steady scenario")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of points per core")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--seed", type=int, help="show one seed again")
    parser.add_argument("--steady", action="store_true", help="show the steady scenario again")
    parser.add_argument("--at", action="append", default=[], metavar="POINT:FATE", help="with --steady: a forced fate")
    return parser.parse_args()


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


def _swarm_share(core: int, cores: int, weeks: float, wanted: float) -> Tally:
    seeds = range(_SWARM_STARTS + core, 2 * _SWARM_STARTS, cores)
    with Laboratory() as laboratory:
        return swarm(laboratory, seeds, weeks, lambda tally: tally.weeks >= wanted)


def _crash_share(core: int, cores: int, weeks: float, step: int) -> Tally:
    with Laboratory() as laboratory:
        known = points_of(laboratory, weeks)
        tally = exhaustive(laboratory, weeks, Fate.CRASH, range(1 + core * step, known + 1, cores * step))
        tally.add(exhaustive(laboratory, weeks, Fate.ERROR, range(1 + core * step, known + 1, 4 * cores * step)))
        return tally


def _pair_share(core: int, weeks: float, count: int) -> Tally:
    with Laboratory() as laboratory:
        return pairs(laboratory, weeks, count, seed=core)


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
