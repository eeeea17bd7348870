"""A worker that dies is named with what it died of, and everything else is done all the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import pytest

from tests.lab.simulation.database import SHARED_MEMORY
from tests.lab.simulation.workers import Task, Workers, laboratory


def _doubled(numbers: Sequence[int], deadly: int) -> list[int]:
    for number in numbers:
        if number == deadly:
            laboratory()
            os.kill(os.getpid(), signal.SIGKILL)
    return [2 * number for number in numbers]


def test_the_input_that_kills_a_worker_is_named_and_the_others_are_answered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tasks = [Task(_doubled, list(range(first, first + 3)), (7,)) for first in range(0, 30, 3)]
    with Workers(2) as workers:
        folder = workers.folder
        answers = sorted(number for found in workers.answers("doubling", tasks) for number in found)
    assert workers.lost == ["doubled 7"]
    assert answers == [2 * number for number in range(30) if number != 7]
    assert "a worker dies in doubled 7" in capsys.readouterr().err
    assert folder.parent == SHARED_MEMORY or SHARED_MEMORY is None
    assert not folder.exists(), "what dead workers left is removed as well"
