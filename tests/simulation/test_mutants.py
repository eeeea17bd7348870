"""Every daemon that is broken on purpose is caught, and the sound one is not."""

from __future__ import annotations

import pytest

from benchmarks.simulation.database import Laboratory
from benchmarks.simulation.mutants import HUNT_LIVENESS_WEEKS, MUTANTS, Mutant, hunt
from benchmarks.simulation.scenario import draw_scenario
from benchmarks.simulation.simulation import Simulation

SEEDS = range(1, 21)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_broken_daemon_is_caught(laboratory: Laboratory, mutant: Mutant) -> None:
    assert hunt(laboratory, mutant, SEEDS) is not None, f"nobody noticed: {mutant.breaks}"


def test_there_are_at_least_25_mutants_with_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25


@pytest.mark.parametrize("seed", SEEDS)
def test_the_sound_daemon_passes_where_mutants_are_caught(laboratory: Laboratory, seed: int) -> None:
    Simulation(laboratory, draw_scenario(seed), liveness_weeks=HUNT_LIVENESS_WEEKS).run()
