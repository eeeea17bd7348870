"""Gates that compare a version with the promoted one: shown to be better, no harm shown, not worse by a margin."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from jobs.scores import Score
from jobs.spec import QualityGate
from scheduler.judge.binomial import ALPHA, mcnemar
from scheduler.judge.judgement import Example, Finding
from scheduler.judge.pairs import clusters_of, differences, spread_of
from scheduler.judge.sign_flip import clusters_needed, half_samples
from scheduler.judge.threshold import EXAMPLES


def comparison_finding(gate: QualityGate, new: Mapping[str, Score], before: Mapping[str, Score]) -> Finding:
    """Return what ``gate`` finds on its own; a guard's outcome is final only with the others, see :func:`hold`."""
    sign = 1 if gate.aim == "high" else -1
    gains = differences(new, before, sign)
    spread = spread_of(gains)
    clusters = clusters_of(gains)
    halves = half_samples(clusters)
    low, high = halves.interval() or (None, None)
    single = len(clusters) == len(gains) and all(
        score.value in (0, 1) for scores in (new, before) for score in scores.values()
    )
    wins, losses = sum(1 for _, gain in gains if gain > 0), sum(1 for _, gain in gains if gain < 0)
    exact = single and gate.kind != "not_worse"
    if gate.kind == "better":
        p_value = mcnemar(wins, losses) if exact else halves.p_above()
    elif gate.kind == "no_harm":
        p_value = mcnemar(losses, wins) if exact else halves.p_below()
    else:
        p_value = halves.p_above(-gate.margin)
    result = Finding(
        gate,
        "failed",
        "",
        test="McNemar" if exact else "sign-flip",
        items=spread.items,
        clusters=spread.clusters,
        value=_mean(new),
        before=_mean(before),
        gain=spread.mean,
        differing=spread.differing,
        design_effect=spread.design_effect,
        low=low,
        high=high,
        smallest_effect=spread.smallest_effect,
        p_value=p_value,
        examples=_worst(new, before, sign),
    )
    changed = sum(1 for cluster in clusters if abs(cluster.total) > 1e-12)
    if gate.kind == "better":
        return _better(result, changed)
    return result if gate.kind == "no_harm" else _not_worse(result)


def hold(guards: Sequence[Finding]) -> list[Finding]:
    """Return the guards with their outcomes, by Holm: together they refuse an equal version in one of twenty cases.

    Guards ask for no proof that nothing is lost, which a set of our size could hardly ever give; they refuse what did
    harm. One with a margin that its set could not have seen says so, and then nothing is promoted on its silence.
    """
    outcomes: dict[int, Finding] = {}
    order = sorted(range(len(guards)), key=lambda place: _p(guards[place]))
    harmed = True
    for rank, place in enumerate(order):
        level = ALPHA / (len(guards) - rank)
        harmed = harmed and _p(guards[place]) <= level
        outcomes[place] = _guard(guards[place], level, harmed=harmed)
    return [outcomes[place] for place in range(len(guards))]


def _better(result: Finding, changed: int) -> Finding:
    metric, gain = result.gate.metric, _gain(result)
    if _p(result) <= ALPHA:
        return result.decided("passed", f"{metric} is better by {gain:.4g}, p {_p(result):.2g}")
    if gain <= 0:
        return result.decided("failed", f"{metric} is no better: {_diff(gain)}")
    if changed < clusters_needed():
        why = (
            f"{metric} differs in {changed:,} of {result.clusters:,} clusters, and with fewer than {clusters_needed()} "
        )
        return result.decided("not_enough_items", why + "nothing can be shown")
    observation = f"{metric} is better by {gain:.4g}, which may be chance (p {_p(result):.2g})"
    if result.gate.margin and result.smallest_effect is not None and result.smallest_effect <= result.gate.margin:
        return result.decided("failed", f"{observation}; {result.gate.margin:g} would most likely have shown")
    return result.decided("not_enough_items", f"{observation}; this set shows {_effect(result)} or more")


def _not_worse(result: Finding) -> Finding:
    metric, gain, margin = result.gate.metric, _gain(result), result.gate.margin
    if _p(result) <= ALPHA:
        return result.decided("passed", f"{metric} is worse by less than {margin:g}, p {_p(result):.2g}: {_diff(gain)}")
    unsure = f"{metric} is not shown to be worse by less than {margin:g} (p {_p(result):.2g}): {_diff(gain)}"
    if gain <= -margin or (result.smallest_effect is not None and result.smallest_effect <= margin):
        return result.decided("failed", unsure)
    return result.decided("not_enough_items", f"{unsure}; this set shows {_effect(result)} or more")


def _guard(result: Finding, level: float, *, harmed: bool) -> Finding:
    metric, gain, margin = result.gate.metric, _gain(result), result.gate.margin
    if harmed:
        return result.decided("failed", f"{metric} was harmed: worse by {-gain:.4g}, p {_p(result):.2g}")
    if gain < 0 and result.clusters < clusters_needed(level):
        why = f"{metric} is worse by {-gain:.4g}; {result.clusters} clusters are too few to tell harm from chance"
        return result.decided("harm_unclear", why)
    if margin and result.smallest_effect is not None and result.smallest_effect > margin:
        why = f"{metric}: {_diff(gain)}; this set shows {_effect(result)} or more, so harm of {margin:g} may hide in it"
        return result.decided("harm_unclear", why)
    return result.decided("passed", f"{metric} shows no harm: {_diff(gain)}, p {_p(result):.2g}")


def _worst(new: Mapping[str, Score], before: Mapping[str, Score], sign: int) -> tuple[Example, ...]:
    lost = [(sign * (score.value - before[item].value), item) for item, score in new.items()]
    worst = sorted(pair for pair in lost if pair[0] < 0)[:EXAMPLES]
    return tuple(Example(item, new[item].value, before[item].value, new[item].example) for _, item in worst)


def _mean(scores: Mapping[str, Score]) -> float:
    return math.fsum(score.value for score in scores.values()) / len(scores)


def _p(result: Finding) -> float:
    return 1.0 if result.p_value is None else result.p_value


def _gain(result: Finding) -> float:
    return result.gain or 0.0


def _diff(gain: float) -> str:
    return f"better by {gain:.4g}" if gain > 0 else f"worse by {-gain:.4g}" if gain < 0 else "the same"


def _effect(result: Finding) -> str:
    return "no difference at all" if result.smallest_effect is None else f"differences of {result.smallest_effect:.2g}"
