"""A storm: a training that is killed again and again, also while it saves, and goes on from its newest checkpoint."""

from __future__ import annotations

import os
import random
import shutil
import signal
from pathlib import Path
from typing import NamedTuple

from tests.lab.desk import Desk

STEPS_BETWEEN = 4  # at most, from a resume to the wish to save
_LOOKS = 1_000  # at a time, for a save to begin: it is written in milliseconds


class Weathered(NamedTuple):
    """What came of a storm: by step all losses reported of it, how many kills cut a save, and where each run began."""

    reported: dict[int, set[float]]
    torn: int
    began: list[int]


def weather(desk: Desk, kills: int, seed: int = 7) -> Weathered:
    """Kill a training ``kills`` times, then let it reach its target."""
    draw = random.Random(seed)
    reported: dict[int, set[float]] = {}
    torn, began = 0, list[int]()
    moments = ["asked", "torn", "torn", "saved", "saved"]
    draw.shuffle(moments)
    for number in range(kills):
        began.append(start := _newest(desk))
        assert start + STEPS_BETWEEN < desk.target, "each is killed before its end"
        # Each moment has its turn, so that of four kills one at least leaves a save to go on from.
        moment = moments[number % len(moments)]
        ended = desk.run(disturb=Storm(desk, start + draw.randint(1, STEPS_BETWEEN), moment))
        assert ended.codes == [-signal.SIGKILL], ended.said
        for path in _partial(desk):
            torn += 1
            shutil.rmtree(path)
        _remember(reported, desk)
    began.append(_newest(desk))
    last = desk.run()
    assert last.codes == [0], last.said
    _remember(reported, desk)
    return Weathered(reported, torn, began)


class Storm:
    """Asks for a checkpoint at a step, and kills: at once, while it is written (``torn``), or when it is whole."""

    def __init__(self, desk: Desk, step: int, moment: str) -> None:
        self._desk, self._step, self._moment = desk, step, moment
        self._before: Path | None = None  # the newest checkpoint when it asked
        self._asked = False

    def __call__(self, process: int, step: int) -> None:
        """Look what to do to a process."""
        if step < self._step:
            return
        if not self._asked:
            self._before, self._asked = self._desk.checkpoint(), True
            os.kill(process, signal.SIGUSR1)
        if self._moment == "asked" or self._is_there():
            os.kill(process, signal.SIGKILL)

    def _is_there(self) -> bool:
        """Whether what it waits for is there. A save that was quicker than a look is whole, and that will do."""
        for _ in range(_LOOKS):
            if self._desk.checkpoint() != self._before:
                return True
            if self._moment == "torn" and _partial(self._desk):
                return True
        return False


def _newest(desk: Desk) -> int:
    newest = desk.checkpoint()
    return 0 if newest is None else int(newest.name.removeprefix("step-"))


def _remember(reported: dict[int, set[float]], desk: Desk) -> None:
    for step, loss in desk.losses():
        if loss is not None:
            reported.setdefault(step, set()).add(loss)


def _partial(desk: Desk) -> list[Path]:
    """Return the checkpoints that are being written, or were when their process was killed."""
    return list((desk.folder / "checkpoints").glob(".*"))
