"""No foresight: whatever the future's chances are, every decision before they are seen is the same."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.planner.planner import Planner, PlannerOptions
from tests.lab.night import share
from tests.lab.planner import closed_loop
from tests.lab.planner.backfill import backfill

if TYPE_CHECKING:
    from scheduler.core.plan import Plan
    from scheduler.core.snapshot import Snapshot

Decisions = list[tuple[int, str]]
Sessions = list[tuple[int, int]]


class Fate(random.Random):
    """What becomes of sessions; from the ``turn``-th launch on (0: never) it is another's. Refusals stay the same."""

    def __init__(self, seed: int, turn: int, other: int) -> None:
        super().__init__(seed)
        self.dies, self.setup = random.Random(seed + 1), random.Random(seed + 2)
        self.turn, self.other, self.launches = turn, other, 0

    def lognormvariate(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        """Drawn first at every launch: how long its set-up takes."""
        self.launches += 1
        if self.launches == self.turn:
            self.dies, self.setup = random.Random(self.other), random.Random(self.other + 1)
        return self.setup.lognormvariate(mu, sigma)

    def expovariate(self, lambd: float = 1.0) -> float:
        """Drawn at every launch: when the session would fail."""
        return self.dies.expovariate(lambd)


class Recorded(closed_loop.Simulation):
    """Notes when each session will really end, which no decision may know."""

    sessions: Sessions

    def _launch(self, *args: Any, **kwargs: Any) -> None:
        super()._launch(*args, **kwargs)
        found = {(int(run.key.split("-")[1]), run.end) for run in self.live}
        self.sessions = sorted({*getattr(self, "sessions", ()), *found})


def week(policy: str, fate: Fate, seed: int, *, peeking: bool = False) -> tuple[Decisions, Sessions]:
    """Return every decision (instant, digest) of a simulated week, and every session (launch number, end)."""
    decisions: Decisions = []
    named = {"fifo": closed_loop.first_in_first_out, "backfill": backfill}
    decide = named.get(policy) or Planner(PlannerOptions(firm_deadlines=False, search_steps=0)).plan

    def watched(snapshot: Snapshot, incumbent: Plan | None) -> Plan:
        plan = decide(snapshot, incumbent)
        future = str([run.end for run in simulation.live]) if peeking else ""
        decisions.append((snapshot.now, plan.digest + future))
        return plan

    simulation = Recorded(seed, 1, watched)
    simulation.faults = fate
    simulation.run()
    return decisions, simulation.sessions


def compared(policy: str, seed: int, turn: int, other: int, *, peeking: bool = False) -> tuple[Decisions, Decisions]:
    """Return the decisions of two weeks until an end of a session tells them apart."""
    one, its = week(policy, Fate(seed, 0, 0), seed, peeking=peeking)
    two, others = week(policy, Fate(seed, turn, other), seed, peeking=peeking)
    parted = min((end for number, end in (*its, *others) if number >= turn), default=1 << 62)
    first, second = ([found for found in some if found[0] < parted] for some in (one, two))
    return first, second


@pytest.mark.parametrize("policy", ["planner", "fifo", "backfill"])
@given(seed=st.integers(0, 50), turn=st.integers(1, 8), other=st.integers(1_000, 2_000))
@settings(max_examples=share(10))
def test_decisions_do_not_know_the_future(policy: str, seed: int, turn: int, other: int) -> None:
    """Two weeks whose chances part at one launch are decided alike until somebody can have seen it."""
    one, two = compared(policy, seed, turn, other)
    assert one
    assert one == two


@pytest.mark.parametrize(("seed", "turn"), [(0, 4), (1, 2), (2, 2)])
def test_who_peeks_is_caught(seed: int, turn: int) -> None:
    """A decision that is made while a session runs and knows when it will end shows it before the end."""
    one, two = compared("fifo", seed, turn, 1_500, peeking=True)
    assert one != two
