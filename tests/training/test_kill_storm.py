"""A training that is killed again and again, also while it saves, ends with the bits of one that was left alone."""

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.desk import Desk

STEPS_BETWEEN = 4  # at most, from a resume to the next save
LOOKS = 100_000  # for a save to begin, which takes milliseconds


@pytest.mark.parametrize(
    ("kills", "options"),
    [(20, ("--lora", "4", "--dropout", "0.1")), (8, ("--background-saves", "on"))],
    ids=["lora", "full in the background"],
)
def test_kills_at_any_moment_change_no_bit(
    make_desk: Callable[..., Desk], kills: int, options: tuple[str, ...]
) -> None:
    draw = random.Random(7)
    whole, stormy = (make_desk(name, *options, "--report-every", "1", target=100) for name in ("whole", "stormy"))
    assert whole.run().codes == [0]
    told: dict[int, set[float]] = {}
    torn = 0
    for _ in range(kills):
        newest = stormy.checkpoint()
        start = 0 if newest is None else int(newest.name.removeprefix("step-"))
        assert start + STEPS_BETWEEN < whole.target, "each is killed before its end"
        storm = Storm(stormy, start + draw.randint(1, STEPS_BETWEEN), draw.choice([None, None, 0, 1, 10]))
        ended = stormy.run(disturb=storm)
        assert ended.codes == [-signal.SIGKILL], ended.said
        for path in partial(stormy):
            torn += 1
            shutil.rmtree(path)
        remember(told, stormy)
    last = stormy.run()
    assert last.codes == [0], last.said
    remember(told, stormy)
    assert torn, "and no save was ever cut"
    assert all(len(losses) == 1 for losses in told.values()), "a step done again has the same loss"
    assert [next(iter(losses)) for _, losses in sorted(told.items())] == [
        loss for _, loss in whole.losses() if loss is not None
    ]
    assert stormy.state() == whole.state()


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
            while looks and not partial(self._desk):
                looks -= 1
        if not self._patience:
            os.kill(process, signal.SIGKILL)
        else:
            self._patience -= 1


def remember(told: dict[int, set[float]], desk: Desk) -> None:
    """Note the losses of the newest run."""
    for step, loss in desk.losses():
        if loss is not None:
            told.setdefault(step, set()).add(loss)


def partial(desk: Desk) -> list[Path]:
    """Return the checkpoints that are being written, or were when their process was killed."""
    return list((desk.folder / "checkpoints").glob(".*"))
