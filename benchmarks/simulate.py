"""Simulate the daemon for thousands of weeks, with faults at every point; writes benchmarks/out/simulate.json.

Without options: a short round of every mode. --seed, --steady and --at show one simulation again. What is known so far
is written every time something new is, so that an interruption leaves it; ``finished`` says whether all was run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from math import ceil
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from tests.lab.simulation.database import Laboratory
from tests.lab.simulation.faults import Fate
from tests.lab.simulation.modes import Tally, exhaustive, pairs, points_of, swarm
from tests.lab.simulation.mutants import MUTANTS, hunt
from tests.lab.simulation.scenario import steady_scenario, swarm_scenario
from tests.lab.simulation.simulation import Failure, Simulation
from tests.lab.simulation.workers import Task, Workers, laboratory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_OUT = Path(__file__).parent / "out" / "simulate.json"
_KILL9 = _OUT.with_name("kill9.json")
_REAL = ("kill9_runs", "kill9_duplicates", "kill9_losses", "adoption_seconds_max")
_FIRST_SEED = 1_000_000  # seeds of `make test` lie below
_MUTANT_SEEDS = range(1, 61)
_WEEKS_OF_A_SEED = 1.15  # of those with faults: the rest is the calm at the end
_PORTION = 8  # simulations in one task
_NICE = 10  # beside real processes, whose times are measured


def main() -> int:
    """Run what the command line asks for; 1 when a promise was broken."""
    arguments = _parse()
    if arguments.seed is not None or arguments.steady:
        return _replay(arguments)
    found = Findings()
    try:
        with Workers(arguments.workers, _NICE if arguments.kill9 else 0) as workers:
            found.lost = workers.lost
            _simulate_weeks(arguments, workers, found)  # alone, for its speed is measured
            with _killing(arguments.kill9, found):
                _simulate_points(arguments, workers, found)
        found.finished = True
    except KeyboardInterrupt:
        print("interrupted; this is what is known:", file=sys.stderr)
    found.write()
    for name, value in found.figures().items():
        print(f"{name:28} {value}")
    if not found.real():
        print(f"{_KILL9} is missing: `make kill9` makes the last four figures")
    return 0 if found.clean else 1


@dataclass(slots=True)
class Findings:
    """What is known so far."""

    swarmed: Tally = field(default_factory=Tally)
    crashed: Tally = field(default_factory=Tally)
    paired: Tally = field(default_factory=Tally)
    caught: int = 0
    lost: list[str] = field(default_factory=list)  # what workers died of
    finished: bool = False
    killed_cleanly: bool = True  # real processes, when they were part of it

    def add(self, tally: Tally, share: Tally) -> None:
        """Add a share to one of the tallies, tell its failures, and write everything down."""
        tally.add(share)
        for failure in share.failures:
            print(failure.report(), file=sys.stderr)
        self.write()

    def figures(self) -> dict[str, Any]:
        """Return the figures; those of real processes come from benchmarks/kill9.py."""
        swarmed = self.swarmed
        tallies = (swarmed, self.crashed, self.paired)
        return {
            "weeks": round(swarmed.weeks),
            "simulations": swarmed.simulations,
            "violations": len(swarmed.failures) + len(self.paired.failures),
            "mutants": len(MUTANTS),
            "mutants_caught": self.caught,
            "weeks_per_second_per_core": round(swarmed.weeks / max(swarmed.cpu_seconds, 1e-9), 2),
            "faults_per_week": round(swarmed.struck / max(swarmed.weeks, 1e-9), 2),
            "crash_points": self.crashed.simulations,
            "crash_failures": len(self.crashed.failures),
            "pairs": self.paired.simulations,
            "never_met": swarmed.never_met,
            "replay": [failure.replay for tally in tallies for failure in tally.failures],
            "workers_lost": self.lost,
            "finished": self.finished,
            **{name: self.real().get(name) for name in _REAL},
        }

    def real(self) -> dict[str, Any]:
        """Return what real processes came to, nothing before they were run."""
        return json.loads(_KILL9.read_text()) if _KILL9.exists() else {}

    def write(self) -> None:
        """Put the figures where others find them, whole at every moment."""
        _OUT.parent.mkdir(exist_ok=True)
        fresh = _OUT.with_suffix(".new")
        fresh.write_text(json.dumps(self.figures(), indent=1) + "\n")
        fresh.replace(_OUT)

    @property
    def clean(self) -> bool:
        """Whether everything was run, every promise kept, every mutant caught and every trouble met."""
        kept = not (self.swarmed.failures or self.crashed.failures or self.paired.failures or self.lost)
        return (
            self.finished
            and kept
            and self.killed_cleanly
            and self.caught == len(MUTANTS)
            and not self.swarmed.never_met
        )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-weeks", type=float, default=100, help="simulated weeks of the swarm")
    parser.add_argument("--weeks", type=float, default=2.0, help="weeks with faults in each simulation")
    parser.add_argument("--first-seed", type=int, default=_FIRST_SEED, help="of the swarm; others show other worlds")
    parser.add_argument("--every-point", type=int, default=20, help="crash at every n-th point of the steady scenario")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of points")
    parser.add_argument("--kill9", type=int, default=0, metavar="RUNS", help="kill real processes at the same time")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes; one for each core")
    parser.add_argument("--seed", type=int, help="show one seed again")
    parser.add_argument("--steady", action="store_true", help="show the steady scenario again")
    parser.add_argument("--at", action="append", default=[], metavar="POINT:FATE", help="with --steady: a forced fate")
    return parser.parse_args()


def _simulate_weeks(arguments: argparse.Namespace, workers: Workers, found: Findings) -> None:
    weeks, first = arguments.weeks, arguments.first_seed
    seeds = range(first, first + ceil(arguments.total_weeks / (weeks * _WEEKS_OF_A_SEED)))
    for share in workers.answers("swarm", [Task(_swarm, portion, (weeks,)) for portion in _portions(seeds)]):
        found.add(found.swarmed, share)


def _simulate_points(arguments: argparse.Namespace, workers: Workers, found: Findings) -> None:
    weeks = arguments.weeks
    (points,) = workers.answers("points", [Task(_points, [weeks])])
    crashes = [
        Task(_crashes, portion, (weeks, fate))
        for fate, step in ((Fate.CRASH, arguments.every_point), (Fate.ERROR, 4 * arguments.every_point))
        for portion in _portions(range(1, points + 1, step))
    ]
    for share in workers.answers("every point", crashes):
        found.add(found.crashed, share)
    sampled = [Task(_pairs, portion, (weeks,)) for portion in _portions(range(arguments.pairs))]
    for share in workers.answers("pairs", sampled):
        found.add(found.paired, share)
    for is_caught in workers.answers("mutants", [Task(_is_caught, [number]) for number in range(len(MUTANTS))]):
        found.caught += is_caught
        found.write()


@contextmanager
def _killing(runs: int, found: Findings) -> Iterator[None]:
    """Have real processes killed meanwhile; an interruption lets those that run come to their end."""
    if not runs:
        yield
        return
    _KILL9.unlink(missing_ok=True)
    script = Path(__file__).with_name("kill9.py")
    # A session of its own: a key pressed here must not reach the rehearsals that are under way.
    campaign = subprocess.Popen([sys.executable, str(script), str(runs)], start_new_session=True, stdout=sys.stderr)
    try:
        yield
        print("waiting for the real processes", file=sys.stderr)
        campaign.wait()
    except BaseException:
        campaign.send_signal(signal.SIGINT)
        campaign.wait()
        raise
    found.killed_cleanly = campaign.returncode == 0


def _portions(inputs: Iterable[int]) -> list[list[int]]:
    left = iter(inputs)
    return list(iter(lambda: list(islice(left, _PORTION)), []))


def _replay(arguments: argparse.Namespace) -> int:
    forced = (entry.split(":") for entry in arguments.at)
    script = {int(point): Fate(fate) for point, fate in forced}
    scenario = steady_scenario(arguments.weeks) if arguments.steady else swarm_scenario(arguments.seed, arguments.weeks)
    with Laboratory() as laboratory:
        try:
            print(Simulation(laboratory, scenario, script).run())
        except Failure as failure:
            print(failure.report())
            return 1
    return 0


def _swarm(seeds: Sequence[int], weeks: float) -> Tally:
    return swarm(laboratory(), seeds, weeks)


def _points(weeks: Sequence[float]) -> int:
    return points_of(laboratory(), weeks[0])


def _crashes(points: Sequence[int], weeks: float, fate: Fate) -> Tally:
    return exhaustive(laboratory(), weeks, fate, points)


def _pairs(seeds: Sequence[int], weeks: float) -> Tally:
    return pairs(laboratory(), weeks, seeds)


def _is_caught(number: Sequence[int]) -> bool:
    mutant = MUTANTS[number[0]]
    failure = hunt(laboratory(), mutant, _MUTANT_SEEDS)
    if failure is None:
        print(f"mutant survives: {mutant.name} ({mutant.breaks})", file=sys.stderr)
    return failure is not None


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = monotonic()
    status = main()
    print(f"{monotonic() - began:.0f} s")
    sys.exit(status)
