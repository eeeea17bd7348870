"""Run simulated worlds with and without chains; print the ratios.

    python benchmarks/bench_chains.py [FIRST_SEED] [LAST_SEED]

Each world has no faults and is full of short jobs; both runs have the same jobs, pools and luck. Prints for all worlds
together: jobs done, sessions, jobs that continued in a session, hours that were charged and trained, weighted flow.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from sqlalchemy import Connection, func, select

from jobs.nouns.window import HOUR, WEEK
from scheduler.core.job import Done
from scheduler.store import jobs, ledger, schema
from tests.lab.simulation import place
from tests.lab.simulation.database import Laboratory
from tests.lab.simulation.mood import GOOD
from tests.lab.simulation.scenario import Scenario, chained_scenario
from tests.lab.simulation.simulation import Simulation

_WEEKS = 1.5
_FIGURES = ("jobs done", "sessions", "jobs that continued", "charged hours", "trained hours", "weighted flow hours")


def main(first: int = 1, last: int = 40) -> None:
    """Print the table."""
    totals = {share: [0.0] * len(_FIGURES) for share in (0.0, 1.0)}
    with Laboratory() as laboratory:
        for seed in range(first, last + 1):
            drawn = chained_scenario(seed, _WEEKS)
            endless = tuple(replace(job, stop=None) for job in drawn.jobs)  # a rule's luck differs between the two runs
            scenario = replace(drawn, mood=GOOD, jobs=endless)
            for share, total in totals.items():
                place.TAKES_ORDERS = share
                found = _run(laboratory, scenario)
                totals[share] = [was + now for was, now in zip(total, found, strict=True)]
    print(f"{'':22}{'without':>10}{'with':>10}{'ratio':>8}")
    for name, without, with_chains in zip(_FIGURES, *totals.values(), strict=True):
        print(f"{name:22}{without:10,.0f}{with_chains:10,.0f}{with_chains / without if without else 0:8.3f}")


def _run(laboratory: Laboratory, scenario: Scenario) -> list[float]:
    simulation = Simulation(laboratory, scenario)
    try:
        simulation.people.fill_queue()
        simulation.advance(int(scenario.start + scenario.weeks * WEEK))
    finally:
        simulation.database.faults = None
    with laboratory.people.read() as tx:
        return _measured(tx, scenario, simulation.world.now)


def _measured(tx: Connection, scenario: Scenario, now: int) -> list[float]:
    records = jobs.everything(tx)
    charges = [charge for found in ledger.charges(tx, 0).values() for charge in found]
    continued = select(func.count()).where(schema.lanes.c.begun_at.is_not(None))
    flow = 0.0
    for record in records:
        end = record.state.at if isinstance(record.state, Done) else now
        flow += record.spec.weight * (end - (record.spec.not_before or scenario.start)) / HOUR
    return [
        sum(isinstance(record.state, Done) for record in records),
        tx.execute(select(func.count()).select_from(schema.runs)).scalar_one(),
        tx.execute(continued).scalar_one(),
        sum(charge.end - charge.start for charge in charges) / HOUR,
        sum(record.done_step / record.spec.steps_per_hour for record in records if record.spec.steps_per_hour),
        flow,
    ]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
