"""One small scenario, with a crash, an error or a second delivery at every single point of it."""

from __future__ import annotations

import pytest

from tests.lab.night import one_in, share
from tests.lab.simulation.database import Laboratory
from tests.lab.simulation.faults import Fate
from tests.lab.simulation.modes import exhaustive, pairs, points_of

WEEKS = 0.2


@pytest.mark.parametrize("fate", [Fate.CRASH, Fate.ERROR, Fate.DUPLICATE])
def test_no_single_point_of_failure(laboratory: Laboratory, fate: Fate) -> None:
    """The scenario without faults tells how many points there are; then each of them, or one in five, fails in turn."""
    known = points_of(laboratory, WEEKS)
    points = range(1, known + 1, one_in())
    tally = exhaustive(laboratory, WEEKS, fate, points)
    assert tally.simulations == len(points)
    assert known > 100
    assert not tally.failures, tally.failures[0].report()


def test_no_sampled_pair_of_points_breaks_a_promise(laboratory: Laboratory) -> None:
    tally = pairs(laboratory, WEEKS, range(share(60)))
    assert not tally.failures, tally.failures[0].report()
