"""When a loss that is a number ends a training: worse than guessing, for long, and not falling."""

import math

import pytest

from jobs.payload.trainers.tuning.errors import STEPS, Divergence

GUESS = math.log(400)


@pytest.mark.parametrize(
    ("losses", "diverged"),
    [
        ([GUESS + 3] * STEPS, True),
        ([GUESS + 3] * (STEPS - 1), False),
        ([GUESS + 1] * 10 * STEPS, False),
        ([GUESS + 9 - step / 50 for step in range(3 * STEPS)], False),
        ([*([GUESS + 3] * (STEPS - 1)), GUESS] * 5, False),
        ([*([GUESS + 3] * 50), math.nan, *([GUESS + 3] * 50)], True),
        ([2.0] * 500 + [GUESS + 2.1 + step / 10 for step in range(STEPS)], True),
    ],
    ids=["level", "not for long", "a beginner", "falls", "one good step", "no number between", "rises"],
)
def test_it_ends_what_is_worse_than_guessing_and_stays_so(losses: list[float], diverged: bool) -> None:
    watch = Divergence(400)
    told = [watch.check(loss) for loss in losses]
    assert any(told) == diverged
