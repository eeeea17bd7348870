"""By how much what Slurm's controller tells is moved to our clock."""

import pytest

from platforms.slurm.commands import skew

NOW = 1_795_000_000


@pytest.mark.parametrize(
    ("told", "known", "found"),
    [
        (NOW, 0, 0),
        (NOW + 30, 0, 0),
        (NOW - 30, 0, 0),
        (NOW + 90, 0, 90),
        (NOW - 90, 0, -90),
        (NOW + 100, 90, 90),  # both ends of a session are moved alike
        (NOW + 3_600, 90, 3_600),
        (NOW, 90, 0),  # somebody has set it right
        (NOW + 20, 90, 0),
    ],
)
def test_a_clock_that_is_off_by_more_than_half_a_minute_is_known_by_what_it_shows(
    told: int, known: int, found: int
) -> None:
    assert skew(str(told), NOW, NOW, known) == found


def test_a_slow_answer_says_no_more_than_it_can() -> None:
    """The controller read its clock at some moment of the half minute that the command took."""
    assert skew(str(NOW + 58), NOW, NOW + 30, 0) == 0
    assert skew(str(NOW + 105), NOW, NOW + 30, 0) == 90


@pytest.mark.parametrize("told", ["", "N/A", "Unknown", "-5"])
def test_what_is_not_told_changes_nothing(told: str) -> None:
    assert skew(told, NOW, NOW, 0) == 0
    assert skew(told, NOW, NOW, 90) == 90
