"""Quality gates: judge a version by its scores. Pure and deterministic: the same input gives the same judgement."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from jobs.definition import written_table
from jobs.payload.scorers.kappa import AGREEMENT_MIN, LABELS_MIN, kappa_of
from jobs.scores import Score, Scores
from jobs.size import counted
from jobs.spec import QualityGate
from scheduler.judge import evidence

Verdict = Literal["accepted", "rejected", "inconclusive", "error"]
Unclear = Literal["", "not_enough_items", "harm_unclear"]
Outcome = Literal["passed", "failed", "not_enough_items", "harm_unclear", "error", "not_asked"]
Test = Literal["point", "bound", "sign-flip", "McNemar", ""]


@dataclass(frozen=True, slots=True)
class Example:
    """An item with a bad value of the version; ``before`` is the value of the promoted version, if it was compared."""

    item: str
    value: float
    before: float | None
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one gate, with its statistics.

    ``value`` is the mean of the version, ``before`` that of the promoted version, ``gain`` their difference (positive
    is better). ``differing``, ``design_effect`` and ``smallest_effect`` are those of :class:`evidence.Spread`. ``low``
    and ``high`` are one-sided 95 % bounds of the gain, for a threshold of the value. The outcome ``not_asked`` means
    that no version is promoted.
    """

    gate: QualityGate
    outcome: Outcome
    reason: str
    test: Test = ""
    items: int = 0
    clusters: int = 0
    value: float | None = None
    before: float | None = None
    gain: float | None = None
    differing: float | None = None
    design_effect: float | None = None
    low: float | None = None
    high: float | None = None
    smallest_effect: float | None = None
    p_value: float | None = None
    examples: tuple[Example, ...] = ()

    def decided(self, outcome: Outcome, reason: str) -> "Finding":
        """Return this finding with an outcome and its reason."""
        return replace(self, outcome=outcome, reason=reason)

    def document(self) -> dict[str, Any]:
        """Return it in plain JSON types."""
        fields = asdict(self)
        return fields | {"gate": written_table(self.gate), "examples": [asdict(example) for example in self.examples]}


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a version. ``unclear`` is why it is inconclusive: too few items, or possible undetected harm."""

    verdict: Verdict
    unclear: Unclear
    reason: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()  # remarks of the scorer
    leaks: Mapping[str, Any] | None = None  # test items that the version or one of its ancestors was trained on

    def document(self) -> dict[str, Any]:
        """Return it in plain JSON types."""
        findings = [finding.document() for finding in self.findings]
        data = {"verdict": self.verdict, "unclear": self.unclear, "reason": self.reason, "findings": findings}
        return {**data, "notes": list(self.notes), "leaks": self.leaks}


# Thresholds: a value that the version must reach without a comparison, by its mean or by the bound of an interval.
EXAMPLES = 5
UNBOUNDED_CLUSTERS_MIN = 20  # for values without limits: with fewer clusters the tails are unknown
_ROUNDING = 1e-12


def threshold_finding(gate: QualityGate, scores: Mapping[str, Score]) -> Finding:
    """Return the finding of a threshold ``gate`` for the scores of its metric."""
    sign = 1 if gate.minimum is not None else -1
    wanted = gate.minimum if gate.minimum is not None else gate.maximum
    assert wanted is not None  # noqa: S101 - the reader of gates guarantees it
    values = [(score.cluster, score.value) for score in scores.values()]
    spread = evidence.spread_of(values)
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
        examples=_lowest(scores, sign, wanted),
    )
    bound_text = f"{'at least' if sign > 0 else 'at most'} {wanted:g}"
    if sign * (spread.mean - wanted) < -_ROUNDING:
        return finding.decided("failed", f"{gate.metric} is {spread.mean:.4g}, where {bound_text} is required")
    if gate.by == "point":
        return finding.decided("passed", f"{gate.metric} is {spread.mean:.4g}; the mean must be {bound_text}")
    bound = low if sign > 0 else high
    if bound is not None and sign * (bound - wanted) >= 0:
        why = f"{gate.metric} is {bound:.4g} or better with 95 % certainty; this bound must be {bound_text}"
        return finding.decided("passed", why)
    certainty = "there is no certain bound" if bound is None else f"only {bound:.4g} is certain"
    why = f"{gate.metric} is {spread.mean:.4g}; from {spread.items:,} items {certainty}, and {bound_text} is required"
    return finding.decided("not_enough_items", why)


def surely_needed(wanted: float) -> int:
    """Return how many independent items, all passed, give a lower bound of at least ``wanted`` for the pass rate."""
    return math.ceil(math.log(evidence.ALPHA) / math.log(wanted) - 1e-9) if 0 < wanted < 1 else 1


def _bounds(values: Sequence[tuple[str, float]], spread: evidence.Spread) -> tuple[float | None, float | None]:
    """Return one-sided 95 % bounds of the mean; None for both if there are too few clusters.

    For values from 0 to 1 these are Clopper-Pearson bounds with the effective number of items: items divided by the
    design effect, or the number of clusters if the values do not vary. Values of 0 and 1 have the largest variance, so
    the bounds also hold for grades in between. For other values the bounds are those of the sign-flip test.
    """
    if all(0 <= value <= 1 for _, value in values):
        worth = spread.clusters if spread.error is None else spread.items / max(1.0, spread.design_effect)
        trials = max(1, math.floor(worth))
        passed = math.floor(trials * spread.mean + 1e-9)
        missed = math.floor(trials * (1 - spread.mean) + 1e-9)
        return evidence.lower_bound(passed, trials), 1 - evidence.lower_bound(missed, trials)
    if spread.clusters < UNBOUNDED_CLUSTERS_MIN:
        return None, None
    return evidence.half_samples(evidence.clusters_of(values)).interval() or (None, None)


def _lowest(scores: Mapping[str, Score], sign: int, wanted: float) -> tuple[Example, ...]:
    worst = sorted(scores.values(), key=lambda score: (sign * score.value, score.item))[:EXAMPLES]
    return tuple(
        Example(score.item, score.value, None, score.example) for score in worst if sign * (score.value - wanted) < 0
    )


# Comparisons with the promoted version: proven better, no harm proven, or proven not worse by more than a margin.
def comparison_finding(gate: QualityGate, new: Mapping[str, Score], before: Mapping[str, Score]) -> Finding:
    """Return the finding of a comparing gate; :func:`decide_guards` sets the outcome of a guard later."""
    sign = 1 if gate.aim == "high" else -1
    gains = evidence.differences(new, before, sign)
    spread = evidence.spread_of(gains)
    clusters = evidence.clusters_of(gains)
    halves = evidence.half_samples(clusters)
    low, high = halves.interval() or (None, None)
    single = len(clusters) == len(gains) and all(
        score.value in (0, 1) for scores in (new, before) for score in scores.values()
    )
    wins, losses = sum(1 for _, gain in gains if gain > 0), sum(1 for _, gain in gains if gain < 0)
    exact = single and gate.kind != "not_worse"
    if gate.kind == "better":
        p_value = evidence.mcnemar(wins, losses) if exact else halves.p_above()
    elif gate.kind == "no_harm":
        p_value = evidence.mcnemar(losses, wins) if exact else halves.p_below()
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


def decide_guards(guards: Sequence[Finding]) -> list[Finding]:
    """Return the guards with their outcomes, by Holm's method: together they reject an equal version in 5 % of cases.

    A guard fails if harm is proven. It does not require proof that there is no harm, because usual sets are too small
    for that. If the set is too small to detect harm of the guard's margin, its outcome is ``harm_unclear``.
    """
    outcomes: dict[int, Finding] = {}
    order = sorted(range(len(guards)), key=lambda index: _p(guards[index]))
    harmed = True
    for rank, index in enumerate(order):
        level = evidence.ALPHA / (len(guards) - rank)
        harmed = harmed and _p(guards[index]) <= level
        outcomes[index] = _guard(guards[index], level, harmed=harmed)
    return [outcomes[index] for index in range(len(guards))]


def _better(result: Finding, changed: int) -> Finding:
    metric, gain = result.gate.metric, _gain(result)
    if _p(result) <= evidence.ALPHA:
        return result.decided("passed", f"{metric} is better by {gain:.4g}, p {_p(result):.2g}")
    if gain <= 0:
        return result.decided("failed", f"{metric} is not better: {_diff(gain)}")
    if changed < (needed := evidence.clusters_needed()):
        why = f"{metric} differs in {changed:,} of {result.clusters:,} clusters; a result needs at least {needed}"
        return result.decided("not_enough_items", why)
    observation = f"{metric} is better by {gain:.4g}, which may be chance (p {_p(result):.2g})"
    if result.gate.margin and result.smallest_effect is not None and result.smallest_effect <= result.gate.margin:
        return result.decided("failed", f"{observation}; {result.gate.margin:g} would most likely have shown")
    return result.decided("not_enough_items", f"{observation}; this set shows {_effect(result)} or more")


def _not_worse(result: Finding) -> Finding:
    metric, gain, margin = result.gate.metric, _gain(result), result.gate.margin
    if _p(result) <= evidence.ALPHA:
        return result.decided("passed", f"{metric} is worse by less than {margin:g}, p {_p(result):.2g}: {_diff(gain)}")
    unsure = f"{metric} is not shown to be worse by less than {margin:g} (p {_p(result):.2g}): {_diff(gain)}"
    if gain <= -margin or (result.smallest_effect is not None and result.smallest_effect <= margin):
        return result.decided("failed", unsure)
    return result.decided("not_enough_items", f"{unsure}; this set shows {_effect(result)} or more")


def _guard(result: Finding, level: float, *, harmed: bool) -> Finding:
    metric, gain, margin = result.gate.metric, _gain(result), result.gate.margin
    if harmed:
        return result.decided("failed", f"{metric} was harmed: worse by {-gain:.4g}, p {_p(result):.2g}")
    if gain < 0 and result.clusters < evidence.clusters_needed(level):
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


def judge(
    gates: Sequence[QualityGate], scores: Scores, in_force: Scores | None, leaks: Mapping[str, Any] | None = None
) -> Judgement:
    """Return the judgement of a version by its scores and those of the promoted version, if there is one.

    Without a promoted version only thresholds are evaluated. The verdict is ``error``, never a pass, if scores cannot
    be compared (another test set, scorer or items), if a metric is missing, or if there is no gate. ``leaks`` are the
    items of the test set that were seen in training, None if unknown.
    """
    if not gates:
        return Judgement("error", "", "the model has no gate; add [[gates]] to its definition", ())
    if in_force is not None and (why := _incomparable(scores, in_force)):
        return Judgement("error", "", why, ())
    findings = [_finding(gate, scores, in_force) for gate in gates]
    judged = [index for index, finding in enumerate(findings) if finding.outcome not in ("error", "not_asked")]
    guards = [index for index in judged if findings[index].gate.kind == "no_harm"]
    for index, finding in zip(guards, decide_guards([findings[index] for index in guards]), strict=True):
        findings[index] = finding
    leaks = leaks and _with_means(gates, scores, leaks)
    findings = [_unless_leaked(finding, leaks or {}) for finding in findings]
    return replace(_verdict(tuple(findings), scores), notes=scores.notes, leaks=leaks)


def _with_means(gates: Sequence[QualityGate], scores: Scores, leaks: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the leaks with ``means``: for each metric, over all items and over the items that were not seen."""
    leaked = frozenset(leaks.get("leaked", ()))
    means, sentences = {}, list(leaks.get("sentences", ()))
    for metric in dict.fromkeys(gate.metric for gate in gates):
        values = scores.by_metric.get(metric, {})
        unseen = {item: score for item, score in values.items() if item not in leaked}
        if len(unseen) < len(values):
            means[metric] = {"all": _mean(values), "unseen": _mean(unseen) if unseen else None}
            without = f"{_mean(unseen):.4g} over the {len(unseen)} not seen" if unseen else "all of which were seen"
            sentences.append(f"{metric} is {_mean(values):.4g} over {counted(len(values), 'item')}, {without}")
    kept = {key: value for key, value in leaks.items() if key != "leaked"}  # up to 100,000 ids
    return {**kept, "sentences": sentences, "means": means} if means else kept


def _unless_leaked(finding: Finding, leaks: Mapping[str, Any]) -> Finding:
    gate, share = finding.gate, leaks.get("share") or 0.0
    leak = gate.leak or ("report" if leaks.get("held_out") else "refuse")
    if leak == "report" or share <= gate.leak_limit or finding.outcome == "error":
        return finding
    limit = f"{share:.1%} of the test set was seen in training, at most {gate.leak_limit:.1%} may be"
    return finding.decided("failed", f"{gate.metric}: {limit}: {'; '.join(leaks['sentences'])}")


def _finding(gate: QualityGate, scores: Scores, in_force: Scores | None) -> Finding:
    new = scores.by_metric.get(gate.metric)
    if new is None:
        listing = ", ".join(sorted(scores.by_metric))
        return Finding(gate, "error", f"there are no scores of {gate.metric}, only of {listing}")
    if not gate.compares:
        return threshold_finding(gate, new)
    if in_force is None:
        return Finding(gate, "not_asked", f"{gate.metric}: there is no promoted version to compare with")
    before = in_force.by_metric.get(gate.metric)
    if before is None or before.keys() != new.keys():
        remedy = "evaluate the promoted version with the same scorer and set"
        return Finding(
            gate, "error", f"{gate.metric} was not scored on the same items of the promoted version; {remedy}"
        )
    return comparison_finding(gate, new, before)


def _verdict(findings: tuple[Finding, ...], scores: Scores) -> Judgement:
    def with_outcome(outcome: str) -> list[Finding]:
        return [finding for finding in findings if finding.outcome == outcome]

    if wrong := with_outcome("error"):
        return Judgement("error", "", _reasons_of(wrong), findings)
    if failed := with_outcome("failed"):
        return Judgement("rejected", "", _reasons_of(failed), findings)
    if few := with_outcome("not_enough_items"):
        return Judgement("inconclusive", "not_enough_items", _reasons_of(few), findings)
    if unclear := with_outcome("harm_unclear"):
        return Judgement("inconclusive", "harm_unclear", _reasons_of(unclear), findings)
    if why := _doubtful_pass(findings, scores):
        return Judgement("error", "", why, findings)
    passed, skipped = with_outcome("passed"), with_outcome("not_asked")
    reason = f"{counted(len(passed), 'gate')} passed"
    if skipped:
        reason += f"; {counted(len(skipped), 'gate')} skipped: no promoted version to compare with"
    return Judgement("accepted", "", reason, findings)


def _doubtful_pass(findings: Sequence[Finding], scores: Scores) -> str:
    """Return why a pass is doubtful, "" if it is not: it rests only on judging models that rarely agree with people."""
    metrics = [finding.gate.metric for finding in findings if finding.outcome == "passed"]
    doubtful = {metric for metric, table in scores.agreement.items() if not kappa_of(table).may_stand_alone}
    if not metrics or not set(metrics) <= doubtful:
        return ""
    kappa = kappa_of(scores.agreement[metrics[0]])
    lower = "unknown" if kappa.lower is None else f"{kappa.lower:.2f}"
    return (
        f"only {metrics[0]} passed, and a judging model decides it: its agreement with people is at least {lower} "
        f"over {counted(kappa.labels, 'label')}, where {AGREEMENT_MIN} over {LABELS_MIN} are needed; add another gate"
    )


def _incomparable(scores: Scores, in_force: Scores) -> str:
    if scores.model != in_force.model:
        return f"these are scores of {scores.model}, but the promoted version is a version of {in_force.model}"
    if scores.test_set != in_force.test_set:
        return "the promoted version was scored on another test set; evaluate it on this one"
    if scores.scorer != in_force.scorer:
        return "the promoted version was scored by another scorer; evaluate it again by this one"
    return ""


def _reasons_of(findings: Sequence[Finding]) -> str:
    return "; ".join(finding.reason for finding in findings)
