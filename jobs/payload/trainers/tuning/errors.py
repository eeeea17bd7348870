"""Errors and printed messages of a training, and the detection of divergence."""

import math
import os
from collections import deque


def say(text: str) -> None:
    """Print a line on rank 0."""
    if os.environ.get("RANK", "0") == "0":
        print(f"finetune: {text}", flush=True)


class TrainingRefused(Exception):
    """The training cannot run with these options; the message says what, why and what to do."""


class UnreadableData(Exception):
    """The corpus is missing, too small for one row, or has an invalid record."""


class MissingLibrary(UnreadableData):
    """A file needs a library that is not installed."""


# A training has diverged if its loss is finite, worse than the loss of a uniform guess, and does not fall.
STEPS = 100  # consecutive steps
_MARGIN = 2.0  # nats per token above a uniform guess


class Divergence:
    """Detects divergence from the losses of steps, in nats per token, for a vocabulary of ``words`` tokens."""

    def __init__(self, words: int) -> None:
        self._bound = math.log(words) + _MARGIN
        self._losses: deque[float] = deque(maxlen=STEPS)

    def check(self, loss: float) -> str:
        """Record a step's loss; return why training should end, or "". A loss that is not finite is ignored."""
        if not math.isfinite(loss):
            return ""
        self._losses.append(loss)
        if len(self._losses) < STEPS or min(self._losses) <= self._bound:
            return ""
        losses = list(self._losses)
        before, after = (sum(half) / len(half) for half in (losses[: STEPS // 2], losses[STEPS // 2 :]))
        if after < before:
            return ""
        return (
            f"the loss diverged: for {STEPS} steps it was above {self._bound:.1f} nats per token, which is worse than "
            f"guessing, and it does not fall ({before:.2f}, then {after:.2f})"
        )
