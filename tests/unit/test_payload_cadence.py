"""The equal-n rule against published figures, brute force and what must always hold."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.payload.lane.meter import checkpoint_times, interval_count
from tests.lab.planner.efficiency import efficiency, expected_charged_seconds, expected_useful_seconds

HOUR, MINUTE = 3600.0, 60.0


@pytest.mark.parametrize(
    ("length_hours", "setup_hours", "checkpoint_minutes", "mtbf_hours", "expected"),
    [
        (12, 0.35, 3, 30, 0.910),
        (12, 0.35, 10, 30, 0.866),
        (12, 0.35, 3, 100, 0.939),
        (12, 0.35, 3, 10, 0.859),
        (4, 0.2, 1, 12, 0.893),
        (4, 0.2, 3, 12, 0.858),
        (4, 0.2, 10, 50, 0.873),
    ],
)
def test_efficiency_reproduces_the_reference_table(
    length_hours: float, setup_hours: float, checkpoint_minutes: float, mtbf_hours: float, expected: float
) -> None:
    found = efficiency(length_hours * HOUR, setup_hours * HOUR, checkpoint_minutes * MINUTE, 1 / (mtbf_hours * HOUR))
    assert found == pytest.approx(expected, abs=0.001)


sessions = st.tuples(
    st.floats(60, 50_000),
    st.floats(0, 3_000),
    st.floats(1, 900),
    st.one_of(st.just(0.0), st.floats(1e-7, 1e-3)),
)


@given(sessions)
def test_no_other_count_keeps_more(session: tuple[float, float, float, float]) -> None:
    """The climb from Young and Daly's guess ends at the best of all counts."""
    length, setup, checkpoint, rate = session

    def useful(count: int) -> float:
        interval = (length - setup - count * checkpoint) / count
        reached = np.exp(-rate * (setup + np.arange(1, count + 1) * (interval + checkpoint)))
        return max(0.0, interval) * float(reached.sum())

    most = min(int((length - setup) / checkpoint) if length > setup else 0, 2_000)
    best = max((useful(count) for count in range(1, most + 1)), default=0.0)
    assert expected_useful_seconds(*session) >= best * (1 - 1e-6) - 1e-6


@given(sessions)
def test_the_last_checkpoint_ends_exactly_at_the_end(session: tuple[float, float, float, float]) -> None:
    length, setup, checkpoint, _ = session
    times = checkpoint_times(*session)
    assert len(times) == interval_count(*session)
    if times:
        assert times[-1] + checkpoint == pytest.approx(length)
        assert times[0] >= setup
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert all(gap == pytest.approx(gaps[0], rel=1e-6) for gap in gaps)
        assert all(gap >= checkpoint * (1 - 1e-9) for gap in gaps)


@given(sessions, st.floats(1, 2_000))
def test_longer_set_up_never_keeps_more(session: tuple[float, float, float, float], extra: float) -> None:
    length, setup, checkpoint, rate = session
    before = expected_useful_seconds(length, setup, checkpoint, rate)
    assert expected_useful_seconds(length, setup + extra, checkpoint, rate) <= before + 1e-6


@given(sessions)
def test_useful_time_fits_into_the_session(session: tuple[float, float, float, float]) -> None:
    length, setup, _, rate = session
    assert 0 <= expected_useful_seconds(*session) <= max(0.0, length - setup)
    assert 0 <= efficiency(*session) <= 1
    assert expected_charged_seconds(length, rate) <= length * (1 + 1e-9)


def test_planning_again_after_a_long_set_up_still_ends_at_the_end() -> None:
    """From the present on it is the same problem, shorter: the last save moves with nothing but the end."""
    planned = checkpoint_times(12 * HOUR, 0.35 * HOUR, 180, 1 / (30 * HOUR))
    late = 2 * HOUR
    again = [late + at for at in checkpoint_times(12 * HOUR - late, 0.0, 180, 1 / (30 * HOUR))]
    assert again[-1] == pytest.approx(planned[-1])
    assert again[0] > late


def test_without_failures_one_checkpoint_at_the_end_is_best() -> None:
    assert checkpoint_times(1_000, 100, 50, 0.0) == (950,)


def test_a_session_too_short_for_a_checkpoint_keeps_nothing() -> None:
    assert checkpoint_times(100, 60, 50, 1e-5) == ()
    assert expected_useful_seconds(100, 60, 50, 1e-5) == 0
    assert efficiency(0, 0, 1, 1e-5) == 0


def test_saves_that_cost_nothing_are_as_many_as_a_thousand_and_none_without_room() -> None:
    """The guess is 537 there: only the climb reaches the best count."""
    assert interval_count(479_876.0, 0.0, 0.02, 0.0012) >= 999
    assert interval_count(100.0, 100.0, 0.0, 0.0) == 0
    assert interval_count(10.0, 0.0, 1.0, 10.0) == 9, "ten saves alone keep nothing"
