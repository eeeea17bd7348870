"""Forecasts of learning curves: bands that are never inverted, whatever was saved, and hold where the law is known."""

from math import inf, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.learning_curve import POINTS_MIN, forecast_of
from tests.lab.curves import CUTS, generated, recorded, stopped_at

STEPS = st.integers(-5, 10**12)
VALUES = st.floats(allow_nan=True, allow_infinity=True)
POINTS = st.lists(st.tuples(STEPS, VALUES), max_size=80)


def power(count: int, floor: float = 2.0) -> list[tuple[int, float]]:
    return [(step * 100, floor + 3 * step**-0.5) for step in range(1, count + 1)]


@given(POINTS, st.integers(1, 10**13), st.sampled_from(["low", "high"]))
def test_a_band_is_never_inverted_and_always_finite(points: list[tuple[int, float]], step: int, aim: str) -> None:
    curve = forecast_of(points, aim)  # type: ignore[arg-type] # drawn from its words
    usable = {
        one for one, value in points if one > 0 and isfinite(dict(points)[one]) and abs(dict(points)[one]) < 1e308
    }
    assert (curve is None) == (len(usable) < POINTS_MIN)
    if curve is not None:
        band = curve.at(step)
        assert -inf < band.low <= band.middle <= band.high < inf
        chances = [curve.chance(value, step) for value in (band.low, band.middle, band.high)]
        assert all(0 <= chance <= 1 for chance in chances)
        assert chances == sorted(chances, reverse=aim == "high")


@given(st.floats(-1e300, 1e300, allow_nan=False), st.integers(POINTS_MIN, 60))
def test_constant_data_stay_constant(value: float, count: int) -> None:
    curve = forecast_of((step, value) for step in range(1, count + 1))
    assert curve is not None
    band = curve.at(4 * count)
    assert (band.low, band.high) == pytest.approx((value, value), rel=1e-6, abs=1e-9)


@given(st.lists(st.floats(1, 10), min_size=6, max_size=40, unique=True))
def test_a_mirrored_curve_has_a_mirrored_forecast(values: list[float]) -> None:
    falling = list(enumerate(sorted(values, reverse=True), 1))
    low, high = forecast_of(falling), forecast_of([(step, -value) for step, value in falling], "high")
    assert low is not None
    assert high is not None
    one, other = low.at(100), high.at(100)
    assert (one.low, one.middle, one.high) == pytest.approx((-other.high, -other.middle, -other.low))


def test_a_power_law_is_recognised_with_its_asymptote() -> None:
    curve = forecast_of(power(20))
    assert curve is not None
    band, truth = curve.at(8_000), power(80)[-1][1]
    assert band.low <= truth <= band.high
    assert band.middle == pytest.approx(truth, abs=0.03)
    assert curve.chance(1.9, 8_000) < 0.01
    assert curve.chance(2.6, 8_000) > 0.95
    assert curve.at(2_000).high - curve.at(2_000).low < band.high - band.low


def test_what_is_no_number_and_a_step_that_was_saved_twice_count_once() -> None:
    clean = forecast_of(power(8))
    dirty = forecast_of([(800, 7.0), (850, nan), (860, inf), (0, 1.0), *power(8)])
    assert clean is not None
    assert dirty is not None
    assert dirty.at(3_000) == clean.at(3_000)
    assert forecast_of([(1, 1.0), (1, 2.0), (2, 1.0), (3, nan), (4, 0.5)]) is None


def test_one_spike_moves_a_forecast_little() -> None:
    points = [(step, value + (0.01 if step // 100 % 2 else -0.01)) for step, value in power(20)]
    spiked = [(step, value + 5.0 * (step == 1_000)) for step, value in points]
    clean, moved = forecast_of(points), forecast_of(spiked)
    assert clean is not None
    assert moved is not None
    assert moved.at(4_000).middle == pytest.approx(clean.at(4_000).middle, abs=0.1)


def test_of_many_points_some_are_used_and_the_answer_is_the_same_each_time() -> None:
    points = power(5_000)
    first, second = forecast_of(points), forecast_of(reversed(points))
    assert first is not None
    assert second is not None
    assert first.at(10**6) == second.at(10**6)


@pytest.mark.parametrize(
    "curves", [[generated(seed) for seed in range(40)], list(recorded())[::2]], ids=["made", "real"]
)
def test_bands_hold_about_nine_of_ten_values(curves: list[tuple[str, list[tuple[int, float]]]]) -> None:
    holds = []
    for _, curve in curves:
        for cut in CUTS:
            if cut * 2 <= len(curve) and (forecast := forecast_of(curve[:cut])) is not None:
                band = forecast.at(curve[2 * cut - 1][0])
                holds.append(band.low <= curve[2 * cut - 1][1] <= band.high)
    assert 0.82 <= sum(holds) / len(holds) <= 0.98


def test_the_rule_ends_what_cannot_reach_its_value_and_not_what_will() -> None:
    curve = power(40)
    assert stopped_at(curve, 2.2) > len(curve) // 4
    assert stopped_at(curve, 2.48) == 0  # reached at the last step
