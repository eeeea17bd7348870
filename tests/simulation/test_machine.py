"""Hypothesis chooses what happens next, so that a broken promise is shown by the shortest story it can find."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.lab.night import share
from tests.lab.simulation.checks import check_at_rest, check_database, check_truth
from tests.lab.simulation.database import Laboratory
from tests.lab.simulation.faults import Fate, Violation
from tests.lab.simulation.mutants import MUTANTS
from tests.lab.simulation.scenario import steady_scenario
from tests.lab.simulation.simulation import Simulation

POOLS = st.sampled_from(("daily", "weekly"))


@contextmanager
def promised() -> Iterator[None]:
    """Turn a broken promise into what Hypothesis shrinks."""
    try:
        yield
    except Violation as violation:
        raise AssertionError(str(violation)) from None


class Story(RuleBasedStateMachine):
    """One world without a will of its own: all trouble comes from the rules."""

    def __init__(self, laboratory: Laboratory) -> None:
        super().__init__()
        scenario = steady_scenario(weeks=1)
        self.script: dict[int, Fate] = {}
        self.simulation = Simulation(laboratory, replace(scenario, jobs=scenario.jobs[:2]))
        self.simulation.faults.script = self.script
        self.world = self.simulation.world

    @initialize()
    def begin(self) -> None:
        """People queue their jobs."""
        self.simulation.people.fill_queue()

    @rule(hours=st.integers(1, 30))
    def time_passes(self, hours: int) -> None:
        """Let the daemon work."""
        with promised():
            self.simulation.advance(self.world.now + hours * 3_600)

    @rule(ahead=st.integers(1, 25), fate=st.sampled_from((Fate.CRASH, Fate.ERROR, Fate.DUPLICATE)))
    def trouble(self, ahead: int, fate: Fate) -> None:
        """Something goes wrong at one of the next points."""
        self.script[self.simulation.faults.points + ahead] = fate

    @rule(pool=POOLS)
    def platform_changes(self, pool: str) -> None:
        """A platform goes down, or comes back."""
        place = self.world.places[pool]
        place.down = not place.down

    @rule()
    def store_changes(self) -> None:
        """The artifact store goes down, or comes back."""
        self.world.shelves.down = not self.world.shelves.down

    @rule(pool=POOLS)
    def sessions_die(self, pool: str) -> None:
        """All sessions of a place lose their machines."""
        for session in list(self.world.places[pool].sessions.values()):
            if session.live and session.began:
                session.end("lost its machine")

    @invariant()
    def books_agree(self) -> None:
        """Tables do not contradict each other or the truth."""
        with promised():
            check_database(self.simulation.laboratory.people)
            check_truth(self.world, self.simulation.laboratory.people)

    def teardown(self) -> None:
        """Trouble stops, and everything must come to its end."""
        with promised():
            self.simulation.calm_down()
            check_at_rest(self.world, self.simulation.laboratory.people)


QUICK = settings(max_examples=share(25), stateful_step_count=12, suppress_health_check=list(HealthCheck))


def test_no_story_breaks_a_promise(laboratory: Laboratory) -> None:
    # A factory will do, whatever the annotation says.
    run_state_machine_as_test(partial(Story, laboratory), settings=QUICK)  # type: ignore[arg-type]


def test_stories_find_a_planted_bug(laboratory: Laboratory) -> None:
    """The machine itself can fail: with half of what ran charged, it does."""
    broken = next(mutant for mutant in MUTANTS if mutant.name == "half spend")
    once = settings(QUICK, phases=[Phase.generate], report_multiple_bugs=False)
    with broken.alive(), pytest.raises(AssertionError, match="bill"):
        run_state_machine_as_test(partial(Story, laboratory), settings=once)  # type: ignore[arg-type]
