"""Modes: many seeds, every single point of one scenario, and pairs of points."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from time import process_time
from typing import TYPE_CHECKING

from tests.lab.simulation.faults import Fate
from tests.lab.simulation.scenario import steady_scenario, swarm_scenario
from tests.lab.simulation.simulation import Failure, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tests.lab.simulation.database import Laboratory

# Every kind of trouble and every way out of it: a swarm that never meets one of them proves less than it says.
MUST_BE_MET = (
    "a job that cannot be launched",
    "answer without its word",
    "artifact outage met",
    "began after the deadline of its launch",
    "books read",
    "budget of a sweep used up",
    "brought home",
    "call hangs",
    "checkpoint damaged",
    "checkpoint unreadable",
    "clock jump",
    "crash",
    "crash commit <",
    "crash commit >",
    "crash launch <",
    "crash launch >",
    "damaged checkpoint passed over",
    "delay",
    "download damaged",
    "duplicate",
    "endless queue",
    "error",
    "key launched again",
    "late answer",
    "killed from outside",
    "killed without a word",
    "launch answer lost",
    "long queue",
    "manifest unreadable",
    "never started",
    "plan in force carried on",
    "platform outage met",
    "preempted",
    "quota surprise",
    "refused",
    "refused for good",
    "refused: false quota",
    "refused: quota surprise",
    "restart",
    "stale list",
    "started from another job",
    "started after all that was held",
    "parent damaged",
    "damaged parent",
    "stopped early",
    "stopped early, and undone",
    "stop flag followed",
    "ten days down",
    "throttled",
    "torn upload",
    "training failed",
    "waited and kept its time",
    "wrong accelerator",
    "outage over an end",
    "look failed after an outage",
    "wait booked",
    "sick: diverges",
    "sick: hangs",
    "sick: never saves",
    "sick: same error",
    "sick: silent",
    "log checkpoint.quarantined",
    "log job.compared",
    "log job.stalled",
    "log launch.unknown",
    "log collect.failed",
    "log quota.unreadable",
    "log report.unknown",
    "people: cancel",
    "people: hold",
    "people: stop",
)


@dataclass(slots=True)
class Tally:
    """What many simulations showed together."""

    simulations: int = 0
    weeks: float = 0.0
    cpu_seconds: float = 0.0
    struck: int = 0  # faults
    failures: list[Failure] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)

    def run(self, simulation: Simulation) -> None:
        """Run one more simulation and add it up."""
        began = process_time()
        try:
            result = simulation.run()
        except Failure as failure:
            self.failures.append(failure)
        else:
            self.weeks += result.weeks
            self.seen.update(result.seen)
            self.struck += simulation.faults.struck
        self.cpu_seconds += process_time() - began
        self.simulations += 1

    def add(self, other: Tally) -> None:
        """Add another tally to this one."""
        self.simulations += other.simulations
        self.weeks += other.weeks
        self.cpu_seconds += other.cpu_seconds
        self.failures.extend(other.failures)
        self.seen.update(other.seen)
        self.struck += other.struck

    @property
    def never_met(self) -> list[str]:
        """Return the troubles that should have been met and never were."""
        return [what for what in MUST_BE_MET if not self.seen[what]]


def swarm(
    laboratory: Laboratory, seeds: Iterable[int], weeks: float = 2.0, enough: Callable[[Tally], bool] | None = None
) -> Tally:
    """Simulate each seed's own world; ``enough`` may end it early."""
    tally = Tally()
    for seed in seeds:
        if enough is not None and enough(tally):
            break
        tally.run(Simulation(laboratory, swarm_scenario(seed, weeks)))
    return tally


def points_of(laboratory: Laboratory, weeks: float) -> int:
    """Return how many points the steady scenario passes when nothing goes wrong."""
    return Simulation(laboratory, steady_scenario(weeks)).run().points


def exhaustive(laboratory: Laboratory, weeks: float, fate: Fate, points: Iterable[int]) -> Tally:
    """Simulate the steady scenario once per point, with one fate at that point."""
    return scripted(laboratory, weeks, ({point: fate} for point in points))


def pairs(laboratory: Laboratory, weeks: float, seeds: Iterable[int]) -> Tally:
    """Simulate the steady scenario once per seed, with two fates at a pair of points that the seed draws."""
    known = points_of(laboratory, weeks)
    fates = (Fate.CRASH, Fate.CRASH, Fate.ERROR)
    scripts = ({point: rng.choice(fates) for point in rng.sample(range(1, known), 2)} for rng in map(Random, seeds))
    return scripted(laboratory, weeks, scripts)


def scripted(laboratory: Laboratory, weeks: float, scripts: Iterable[Mapping[int, Fate]]) -> Tally:
    """Simulate the steady scenario once per script."""
    tally = Tally()
    for script in scripts:
        tally.run(Simulation(laboratory, steady_scenario(weeks), script))
    return tally
