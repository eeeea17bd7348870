"""Hard thresholds: what a version must reach by itself, by its mean or by the cautious end of an interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jobs.scores import Score
from jobs.spec import QualityGate
from scheduler.judge.binomial import ALPHA, lower_bound
from scheduler.judge.judgement import Example, Finding
from scheduler.judge.pairs import Spread, clusters_of, spread_of
from scheduler.judge.sign_flip import half_samples

EXAMPLES = 5
UNBOUNDED_CLUSTERS_MIN = 20  # of values that have no ends: fewer say too little of what their tails are like
_ROUNDING = 1e-12


def threshold_finding(gate: QualityGate, scores: Mapping[str, Score]) -> Finding:
    """Return whether ``gate``, a threshold, holds for the scores of its metric."""
    sign = 1 if gate.minimum is not None else -1
    wanted = gate.minimum if gate.minimum is not None else gate.maximum
    assert wanted is not None  # noqa: S101 - the reader of gates has seen to it
    values = [(score.cluster, score.value) for score in scores.values()]
    spread = spread_of(values)
    low, high = _bounds(values, spread)
    finding = Finding(
        gate,
        "failed",
        "",
        test="point" if gate.by == "point" else "bound",
        items=spread.items,
        clusters=spread.clusters,
        value=spread.mean,
        design_effect=spread.design_effect,
        low=low,
        high=high,
        smallest_effect=spread.smallest_effect,
        examples=_worst(scores, sign, wanted),
    )
    bound_text = f"{'at least' if sign > 0 else 'at most'} {wanted:g}"
    if sign * (spread.mean - wanted) < -_ROUNDING:
        return finding.decided("failed", f"{gate.metric} is {spread.mean:.4g}, where {bound_text} is asked")
    if gate.by == "point":
        return finding.decided("passed", f"{gate.metric} is {spread.mean:.4g}; {bound_text} is asked of the mean")
    bound = low if sign > 0 else high
    if bound is not None and sign * (bound - wanted) >= 0:
        return finding.decided(
            "passed", f"{gate.metric} is {bound:.4g} or better for sure; {bound_text} is asked of the bound"
        )
    certainty = "nothing can be said for sure" if bound is None else f"only {bound:.4g} is sure"
    why = (
        f"{gate.metric} is {spread.mean:.4g}, but from {spread.items:,} items {certainty}, where {bound_text} is asked"
    )
    return finding.decided("not_enough_items", why)


def surely_needed(wanted: float) -> int:
    """Return how many independent items a perfect version needs for a lower bound of ``wanted``."""
    return math.ceil(math.log(ALPHA) / math.log(wanted) - 1e-9) if 0 < wanted < 1 else 1


def _bounds(values: Sequence[tuple[str, float]], spread: Spread) -> tuple[float | None, float | None]:
    """Return one-sided 95 % bounds of the mean.

    Of values from 0 to 1 they are Clopper and Pearson's for as many items as the clustered ones are worth (never more
    than there are; where nothing varies, one for each cluster). No such values vary more than passed and failed do,
    so that the bounds hold for grades as well. Of any other values they are those of the half samples.
    """
    if all(0 <= value <= 1 for _, value in values):
        worth = spread.clusters if spread.error is None else spread.items / max(1.0, spread.design_effect)
        trials = max(1, math.floor(worth))
        passed = math.floor(trials * spread.mean + 1e-9)
        missed = math.floor(trials * (1 - spread.mean) + 1e-9)
        return lower_bound(passed, trials), 1 - lower_bound(missed, trials)
    if spread.clusters < UNBOUNDED_CLUSTERS_MIN:
        return None, None
    return half_samples(clusters_of(values)).interval() or (None, None)


def _worst(scores: Mapping[str, Score], sign: int, wanted: float) -> tuple[Example, ...]:
    worst = sorted(scores.values(), key=lambda score: (sign * score.value, score.item))[:EXAMPLES]
    return tuple(
        Example(score.item, score.value, None, score.example) for score in worst if sign * (score.value - wanted) < 0
    )
