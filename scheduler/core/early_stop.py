"""Early stop: decide from the checkpoints of a job whether more training would gain anything, by its owner's rule."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

from jobs.size import counted
from jobs.spec import StopRule
from scheduler.core.learning_curve import REACH, forecast_of

_AGREE = 3  # so many forecasts in a row must agree, because the first one of many to stop is right less often


@dataclass(frozen=True, slots=True)
class Scored:
    """A checkpoint and the metric of the rule; ``good`` ones can be the result, the others only count."""

    key: str
    step: int
    value: float
    good: bool = True


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a job by its early-stopping rule.

    ``best`` is the best checkpoint that can be the result, None while there is none. ``since`` checkpoints in a row
    were no improvement. ``why`` says why training ends; it is empty while it goes on.
    """

    best: Scored | None = None
    since: int = 0
    why: str = ""


def progress(rule: StopRule, history: Iterable[Scored], target_step: int = 0) -> Progress:
    """Return the state of a job by its rule, from its checkpoints in the order of their steps and its target step.

    A checkpoint is an improvement when it is better than the best before it by at least ``rule.least``, or by
    anything where that is 0. A value that is no finite number counts as no improvement.
    """
    history = list(history)
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
    if not why and rule.forecast is not None and rule.value is not None:
        points = [(one.step, one.value) for one in history]
        if all(_chance(rule, points[: len(points) - late], target_step) < 1 - rule.forecast for late in range(_AGREE)):
            sure = f"{rule.forecast:.0%}".replace("%", " %")
            why = f"{rule.metric} will not be {rule.value:.6g} at step {target_step:,}, with {sure} certainty"
    return Progress(best, since, why if best is not None else "")


def _chance(rule: StopRule, points: Sequence[tuple[int, float]], target_step: int) -> float:
    """Return the most that the probability may be to reach the value by the target step; 1 without a forecast."""
    newest = points[-1][0] if points else 0
    curve = forecast_of(points, rule.aim) if newest < target_step <= REACH * newest else None
    if curve is None or rule.value is None:
        return 1.0
    later = (newest + (target_step - newest) * quarter // 4 for quarter in range(1, 5))
    return sum(curve.chance(rule.value, step) for step in later)


def _loss(rule: StopRule, value: float) -> float:
    return value if rule.aim == "low" else -value
