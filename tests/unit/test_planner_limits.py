"""The limit of one quota window: below that of endless full sessions, by the set-ups that failures cost."""

from __future__ import annotations

import pytest

from benchmarks.planner.limits import window_over_endless
from scheduler.core.window import HOUR


def test_without_failures_a_window_of_whole_sessions_loses_nothing() -> None:
    """Two full sessions are as good as endless ones."""
    assert window_over_endless(8 * HOUR, 4 * HOUR, 720, 60, 0.0) == pytest.approx(1.0)


def test_without_failures_half_a_session_pays_a_whole_set_up() -> None:
    """Six hours at a cap of four: two sessions, two set-ups and two checkpoints instead of one and a half."""
    kept, endless = 6 * HOUR - 2 * 780, (4 * HOUR - 780) / (4 * HOUR) * 6 * HOUR
    assert window_over_endless(6 * HOUR, 4 * HOUR, 720, 60, 0.0) == pytest.approx(kept / endless)


def test_a_longer_window_comes_nearer_to_the_endless_limit() -> None:
    """A failure costs the rest of one window at most."""
    day, week = (window_over_endless(hours * HOUR, 4 * HOUR, 720, 60, 1 / (12 * HOUR), 120) for hours in (4, 28))
    assert day < week < 1.0


def test_a_window_of_one_session_with_failures_is_below_one() -> None:
    """SageMaker's day: the figure that docs/planning.md names."""
    assert window_over_endless(4 * HOUR, 4 * HOUR, 720, 60, 1 / (12 * HOUR)) == pytest.approx(0.993, abs=0.001)
