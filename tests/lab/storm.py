"""A storm: a training that is killed again and again, also while it saves, and goes on from its newest checkpoint."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.lab.desk import Desk

STEPS_BETWEEN = 4  # at most, from a resume to the next save
LOOKS = 100_000  # for a save to begin, which takes milliseconds


class Weathered(NamedTuple):
    """What came of a storm: by step all losses that were told of it, and how many kills cut a save."""

    told: dict[int, set[float]]
    torn: int


def weather(desk: Desk, kills: int, notice: Callable[[int, int], None] = lambda *_: None) -> Weathered:
    """Kill a training ``kills`` times, then let it reach its target. ``notice`` gets each kill's number and step."""
    draw = random.Random(7)
    told: dict[int, set[float]] = {}
    torn = 0
    for number in range(kills):
        newest = desk.checkpoint()
        start = 0 if newest is None else int(newest.name.removeprefix("step-"))
        assert start + STEPS_BETWEEN < desk.target, "each is killed before its end"
        storm = Storm(desk, start + draw.randint(1, STEPS_BETWEEN), draw.choice([None, None, 0, 1, 10]))
        ended = desk.run(disturb=storm)
        assert ended.codes == [-signal.SIGKILL], ended.said
        for path in _partial(desk):
            torn += 1
            shutil.rmtree(path)
        _remember(told, desk)
        notice(number + 1, max((step for step, _ in desk.losses()), default=start))
    last = desk.run()
    assert last.codes == [0], last.said
    _remember(told, desk)
    return Weathered(told, torn)


class Storm:
    """Asks for a checkpoint at a step, and kills once it is being written, or some hundredths of a second later."""

    def __init__(self, desk: Desk, step: int, patience: int | None) -> None:
        self._desk, self._step, self._patience, self._asked = desk, step, patience, False

    def __call__(self, process: int, step: int) -> None:
        """Look what to do to a process."""
        if step < self._step:
            return
        if not self._asked:
            os.kill(process, signal.SIGUSR1)
            self._asked = True
            looks = 0 if self._patience is not None else LOOKS
            while looks and not _partial(self._desk):
                looks -= 1
        if not self._patience:
            os.kill(process, signal.SIGKILL)
        else:
            self._patience -= 1


def _remember(told: dict[int, set[float]], desk: Desk) -> None:
    for step, loss in desk.losses():
        if loss is not None:
            told.setdefault(step, set()).add(loss)


def _partial(desk: Desk) -> list[Path]:
    """Return the checkpoints that are being written, or were when their process was killed."""
    return list((desk.folder / "checkpoints").glob(".*"))
