"""Every daemon that is broken on purpose is caught, and the sound one is not."""

from __future__ import annotations

import pytest

from tests.lab.simulation.database import Laboratory
from tests.lab.simulation.mutants import HUNT_LIVENESS_WEEKS, MUTANTS, Mutant, hunt
from tests.lab.simulation.scenario import draw_scenario
from tests.lab.simulation.simulation import Simulation

SEEDS = range(1, 21)


# All of them in the night; each twentieth with every push, so that the hunt itself is known to work.
HUNTED = [
    pytest.param(mutant, id=mutant.name.replace(" ", "-"), marks=[pytest.mark.nightly] if index % 20 else [])
    for index, mutant in enumerate(MUTANTS)
]


@pytest.mark.parametrize("mutant", HUNTED)
def test_a_broken_daemon_is_caught(laboratory: Laboratory, mutant: Mutant) -> None:
    assert hunt(laboratory, mutant, SEEDS) is not None, f"nobody noticed: {mutant.breaks}"


def test_there_are_at_least_25_mutants_with_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25


def test_every_mutant_breaks_what_is_there() -> None:
    assert [mutant.name for mutant in MUTANTS if not hasattr(mutant.owner, mutant.attribute)] == []


@pytest.mark.nightly
@pytest.mark.parametrize("seed", SEEDS)
def test_the_sound_daemon_passes_where_mutants_are_caught(laboratory: Laboratory, seed: int) -> None:
    Simulation(laboratory, draw_scenario(seed), liveness_weeks=HUNT_LIVENESS_WEEKS).run()
