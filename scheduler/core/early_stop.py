"""Early stop: decide from the checkpoints of a job whether more training would gain anything, by its owner's rule."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

from jobs.size import counted
from jobs.spec import StopRule
from scheduler.core.learning_curve import REACH, forecast_of

_AGREE = 3  # forecasts in a row that must agree: each checkpoint makes another, so a single one is wrong too often


@dataclass(frozen=True, slots=True)
class Scored:
    """A checkpoint with the rule's metric as ``value``. Only a ``good`` checkpoint can be the job's result."""

    key: str
    step: int
    value: float
    good: bool = True


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a job by its early-stopping rule.

    ``best`` is the best checkpoint that can be the result, None while there is none. ``since`` is the number of
    checkpoints after the last improvement. ``why`` is the reason to end the training, empty while it goes on.
    """

    best: Scored | None = None
    since: int = 0
    why: str = ""


def progress(rule: StopRule, history: Iterable[Scored], target_step: int = 0) -> Progress:
    """Return the state of a job by its rule; ``history`` are its checkpoints in the order of their steps.

    A checkpoint is an improvement if it is better than the last improvement by at least ``rule.least``, or by any
    amount if that is 0. An infinite value, or one that is not a number, is not an improvement.
    """
    history = list(history)
    best: Scored | None = None
    reference: float | None = None  # the loss of the last improvement
    since = 0
    why = ""
    for scored in history:
        loss = _loss(rule, scored.value)
        if isfinite(loss) and scored.good and (best is None or loss < _loss(rule, best.value)):
            best = scored
        if isfinite(loss) and (reference is None or (loss < reference and reference - loss >= rule.least)):
            reference, since = loss, 0
        else:
            since += 1
        if not why and rule.value is not None and loss <= _loss(rule, rule.value):
            why = f"{rule.metric} is {scored.value:.6g} at step {scored.step}; the stop rule wants {rule.value:.6g}"
    if not why and rule.patience and since >= rule.patience and best is not None:
        least = f" by {rule.least:g}" if rule.least else ""
        why = (
            f"{rule.metric} has not improved{least} for {counted(since, 'checkpoint')}; the best is {best.value:.6g} "
            f"at step {best.step}"
        )
    if not why and rule.forecast is not None and rule.value is not None:
        points = [(scored.step, scored.value) for scored in history]
        starts = (points[: len(points) - omitted] for omitted in range(_AGREE))
        if all(_chance(rule, start, target_step) < 1 - rule.forecast for start in starts):
            certainty = f"{rule.forecast:.0%}".replace("%", " %")
            why = f"{rule.metric} will not be {rule.value:.6g} at step {target_step:,}, with {certainty} certainty"
    return Progress(best, since, why if best is not None else "")


def _chance(rule: StopRule, points: Sequence[tuple[int, float]], target_step: int) -> float:
    """Return an upper bound of the probability to reach the rule's value by the target step; 1 without a forecast."""
    newest = points[-1][0] if points else 0
    curve = forecast_of(points, rule.aim) if newest < target_step <= REACH * newest else None
    if curve is None or rule.value is None:
        return 1.0
    later = (newest + (target_step - newest) * quarter // 4 for quarter in range(1, 5))
    return sum(curve.chance(rule.value, step) for step in later)


def _loss(rule: StopRule, value: float) -> float:  # lower is better, whatever the rule's aim
    return value if rule.aim == "low" else -value
