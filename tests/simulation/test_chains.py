"""Jobs that continue in running sessions: random worlds full of short jobs, and trouble at each point of a handover."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from jobs.nouns.window import HOUR
from tests.lab.simulation.database import Laboratory
from tests.lab.simulation.faults import Fate, Faults
from tests.lab.simulation.scenario import Scenario, chained_scenario, steady_scenario
from tests.lab.simulation.simulation import Simulation

_AROUND = range(-12, 16)  # points from the look that finds the lane over to the cycle after the order


def handovers() -> Scenario:
    """Return a calm week of one pool, whose two lanes get free at different times."""
    steady = steady_scenario(1.0)
    long, *short = (replace(job, gate=None, start_from=None) for job in steady.jobs)
    jobs = [replace(long, target_step=int(20 * long.steps_per_hour))]
    jobs += [replace(job, target_step=int(2 * job.steps_per_hour)) for job in short]
    pool = replace(steady.pools[0], devices_per_session=2, sessions_max=1, session_cap_seconds=12 * HOUR)
    return replace(steady, pools=(pool,), jobs=tuple(jobs))


def test_worlds_full_of_short_jobs_break_no_promise(laboratory: Laboratory) -> None:
    met: Counter[str] = Counter()
    for seed in range(1, 11):
        met.update(Simulation(laboratory, chained_scenario(seed, 1.0)).run().seen)
    assert met["chained lane"]
    assert met["nothing continues"]


@pytest.mark.parametrize("fate", [Fate.CRASH, Fate.ERROR, Fate.DUPLICATE])
def test_trouble_at_each_point_of_a_handover_loses_nothing_and_does_nothing_twice(
    laboratory: Laboratory, fate: Fate, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    note = Faults.note

    def noted(faults: Faults, line: str) -> None:
        lines.append(line)
        note(faults, line)

    with monkeypatch.context() as patch:
        patch.setattr(Faults, "note", noted)
        assert Simulation(laboratory, handovers()).run().seen["chained lane"], "nothing continues, so nothing is tried"
    [put] = [number for number, line in enumerate(lines, 1) if "next.json <" in line]
    met: Counter[str] = Counter()
    for near in _AROUND:
        met.update(Simulation(laboratory, handovers(), {put + near: fate}).run().seen)
    assert met["chained lane"] > len(_AROUND) / 2
