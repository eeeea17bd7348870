"""Limits: of one quota window, below that of endless full sessions, and of the flow time of a simulated year."""

from __future__ import annotations

import pytest

from jobs.nouns.window import DAY, HOUR, WEEK
from tests.lab.planner import closed_loop
from tests.lab.planner.efficiency import efficiency
from tests.lab.planner.flow_limit import least_flow_days
from tests.lab.planner.limits import window_over_endless
from tests.lab.planner.year import FAILURES


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
    """SageMaker's day: the figure that docs/inside/planning.md names."""
    assert window_over_endless(4 * HOUR, 4 * HOUR, 720, 60, 1 / (12 * HOUR)) == pytest.approx(0.993, abs=0.001)


def only(weeks: int, *names: str) -> closed_loop.Simulation:
    """A year in which these models of the first family are all there is."""
    simulation = closed_loop.Simulation(0, weeks, closed_loop.first_in_first_out)
    simulation.arrivals = [[model for model in simulation.arrivals[0] if model.name[10:] in names]]
    return simulation


def test_a_model_that_ends_in_its_first_week_takes_half_its_fastest_time_at_the_least() -> None:
    """Nothing else is asked of it: its gate is its own, and the week has hours enough."""
    simulation = only(2, "main")
    ((main,),) = simulation.arrivals
    assert least_flow_days(simulation) == pytest.approx(0.6 * main.target / main.true["kaggle"] / 2 / DAY)


def test_what_the_quotas_cannot_do_waits_to_the_end() -> None:
    """One week, of which Kaggle gives nothing: 28 hours of a gate and of what is behind it, at the stochastic limit."""
    simulation = only(1, "main", "m0")
    simulation.limits = [0]
    main, manager = simulation.arrivals[0]
    main.weight = 0.0
    kept = efficiency(4 * HOUR, main.setup, 60, FAILURES["sagemaker"])
    its = efficiency(4 * HOUR, manager.setup, 60, FAILURES["sagemaker"])
    whole = 0.4 * main.target / main.true["sagemaker"] / kept + manager.target / manager.true["sagemaker"] / its
    share = 28 * HOUR / whole
    half = manager.target / manager.true["kaggle"] / 2
    assert 0 < share < 1
    assert least_flow_days(simulation) == pytest.approx((WEEK - share * (WEEK - half)) / DAY)


def test_no_year_is_below_the_least_flow_time() -> None:
    """First in, first out takes longer; more quota lowers the limit."""
    least = least_flow_days(closed_loop.Simulation(3, 4, None))
    assert closed_loop.Simulation(3, 4, closed_loop.first_in_first_out).run().weighted_flow_days > least > 0
    rich = closed_loop.Simulation(3, 4, None)
    rich.limits = [limit * 2 for limit in rich.limits]
    assert least_flow_days(rich) < least
