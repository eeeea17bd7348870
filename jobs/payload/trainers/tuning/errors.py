"""What a training tells people, and what keeps it from going on."""

from __future__ import annotations

import math
import os
from collections import deque


def say(text: str) -> None:
    """Print a line for people, in the first of the processes alone."""
    if os.environ.get("RANK", "0") == "0":
        print(f"finetune: {text}", flush=True)


class TrainingRefused(Exception):
    """The program will not train like this; the message says what, why and what to do."""


class UnreadableData(Exception):
    """The corpus is missing, too small for one row, or has a record that means nothing."""


# A loss that is a number and yet says that training went wrong: worse than guessing all tokens alike.
STEPS = 100  # for so long in a row
_MARGIN = 2.0  # nats a token above what a model without any knowledge has


class Divergence:
    """Looks at the losses of a session's steps, in nats a token, of a model with so many words."""

    def __init__(self, words: int) -> None:
        self._bound = math.log(words) + _MARGIN
        self._losses: deque[float] = deque(maxlen=STEPS)

    def check(self, loss: float) -> str:
        """Take a step's loss; return why training should end, or nothing. One that is no number is another's to judge.

        A model that begins badly and learns is not meant.
        """
        if not math.isfinite(loss):
            return ""
        self._losses.append(loss)
        if len(self._losses) < STEPS or min(self._losses) <= self._bound:
            return ""
        losses = list(self._losses)
        before, after = (sum(some) / len(some) for some in (losses[: STEPS // 2], losses[STEPS // 2 :]))
        if after < before:
            return ""
        return (
            f"the loss diverged: for {STEPS} steps it was above {self._bound:.1f} nats a token, which is worse than "
            f"guessing, and it does not fall ({before:.2f}, then {after:.2f})"
        )
