"""Early stop: decide from the checkpoints of a job whether more training would gain anything, by its owner's rule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

from jobs.plural import counted
from jobs.spec import StopRule


@dataclass(frozen=True, slots=True)
class Scored:
    """A checkpoint and the metric of the rule; ``good`` ones can be the result, the others only count."""

    key: str
    step: int
    value: float
    good: bool = True


@dataclass(frozen=True, slots=True)
class Progress:
    """How a job stands by its rule.

    ``best`` is the best checkpoint that can be the result, None while there is none. ``since`` checkpoints in a row
    were no improvement. ``why`` says why training ends; it is empty while it goes on.
    """

    best: Scored | None = None
    since: int = 0
    why: str = ""


def progress(rule: StopRule, history: Iterable[Scored]) -> Progress:
    """Return how a job stands by its rule, given its checkpoints in the order of their steps.

    A checkpoint is an improvement when it is better than the best before it by at least ``rule.least``, or by
    anything where that is 0. A value that is no finite number counts as no improvement.
    """
    best: Scored | None = None
    mark: float | None = None  # what the next improvement is measured from
    since = 0
    why = ""
    for one in history:
        value = _loss(rule, one.value)
        if isfinite(value) and one.good and (best is None or value < _loss(rule, best.value)):
            best = one
        if isfinite(value) and (mark is None or (value < mark and mark - value >= rule.least)):
            mark, since = value, 0
        else:
            since += 1
        if not why and rule.value is not None and value <= _loss(rule, rule.value):
            why = f"{rule.metric} is {one.value:.6g} at step {one.step}, and {rule.value:.6g} was asked for"
    if not why and rule.patience and since >= rule.patience and best is not None:
        least = f" by {rule.least:g}" if rule.least else ""
        why = (
            f"{rule.metric} has not improved{least} for {counted(since, 'checkpoint')}; the best is {best.value:.6g} "
            f"at step {best.step}"
        )
    return Progress(best, since, why if best is not None else "")


def _loss(rule: StopRule, value: float) -> float:
    return value if rule.aim == "low" else -value
