"""BackgroundTasks: one of a name at a time, joined by whoever asks, and begun anew when they are over."""

import threading
from collections.abc import Callable

import pytest

from platforms.kaggle.kernel.packing import BackgroundTasks, TaskUnfinished
from tests.lab.patience import PATIENCE_SECONDS


def test_whoever_asks_again_joins_and_is_told_how_far_it_has_come() -> None:
    tasks: BackgroundTasks[int] = BackgroundTasks()
    go, runs = threading.Event(), []

    def work(tell: Callable[[str], None]) -> int:
        runs.append(1)
        tell("half of it")
        assert go.wait(PATIENCE_SECONDS)
        return 7

    told = ""
    while told != "half of it":
        with pytest.raises(TaskUnfinished) as unfinished:
            tasks.run("upload", work, 0.0)
        told = str(unfinished.value)
    go.set()
    assert tasks.run("upload", work, 10.0) == 7
    assert len(runs) == 1
    assert tasks.run("upload", work, 10.0) == 7
    assert len(runs) == 2


def test_what_it_raises_is_raised_once_where_it_is_asked_for() -> None:
    tasks: BackgroundTasks[int] = BackgroundTasks()

    def fail(tell: Callable[[str], None]) -> int:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        tasks.run("upload", fail, 10.0)
    assert tasks.run("upload", lambda tell: 1, 10.0) == 1
