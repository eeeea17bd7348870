"""The verdict: gates and scores in, one judgement out. The same input gives the same judgement, on every machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jobs.payload.scorers.kappa import AGREEMENT_MIN, LABELS_MIN, kappa_of
from jobs.plural import counted
from jobs.scores import Scores
from jobs.spec import QualityGate
from scheduler.judge.comparison import comparison_finding, hold
from scheduler.judge.judgement import Finding, Judgement
from scheduler.judge.threshold import threshold_finding


def judge(
    gates: Sequence[QualityGate], scores: Scores, in_force: Scores | None, leaks: Mapping[str, Any] | None = None
) -> Judgement:
    """Judge a version by its scores and, where there is one, by those of the promoted version.

    Without a promoted version only thresholds are asked. Scores that cannot be compared (another test set, another
    scorer, other items) or a metric that is missing are an error, which is never a pass; so is having no gate at all.
    ``leaks`` says which share of the test set was seen in training, None where that is unknown.
    """
    if not gates:
        return Judgement("error", "", "there is no gate to judge by; write [[gates]] in the model's definition", ())
    if in_force is not None and (why := _incomparable(scores, in_force)):
        return Judgement("error", "", why, ())
    findings = [_finding(gate, scores, in_force) for gate in gates]
    guards = [place for place, finding in enumerate(findings) if _is_guard(finding)]
    for place, finding in zip(guards, hold([findings[place] for place in guards]), strict=True):
        findings[place] = finding
    findings = [_unless_leaked(finding, leaks or {}) for finding in findings]
    return replace(_verdict(tuple(findings), scores), notes=scores.notes, leaks=leaks)


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
    def of(outcome: str) -> list[Finding]:
        return [finding for finding in findings if finding.outcome == outcome]

    if wrong := of("error"):
        return Judgement("error", "", _all(wrong), findings)
    if failed := of("failed"):
        return Judgement("rejected", "", _all(failed), findings)
    if few := of("not_enough_items"):
        return Judgement("inconclusive", "not_enough_items", _all(few), findings)
    if unclear := of("harm_unclear"):
        return Judgement("inconclusive", "harm_unclear", _all(unclear), findings)
    if why := _rests_on_a_doubtful_judge(findings, scores):
        return Judgement("error", "", why, findings)
    passed, skipped = of("passed"), of("not_asked")
    reason = f"{counted(len(passed), 'gate')} passed"
    if skipped:
        reason += f"; {counted(len(skipped), 'gate')} skipped: no promoted version to compare with"
    return Judgement("accepted", "", reason, findings)


def _rests_on_a_doubtful_judge(findings: Sequence[Finding], scores: Scores) -> str:
    """Say so if nothing but the word of models that agree too little with people speaks for a version."""
    metrics = [finding.gate.metric for finding in findings if finding.outcome == "passed"]
    doubtful = {metric for metric, table in scores.agreement.items() if not kappa_of(table).may_stand_alone}
    if not metrics or not set(metrics) <= doubtful:
        return ""
    kappa = kappa_of(scores.agreement[metrics[0]])
    lower = "unknown" if kappa.lower is None else f"{kappa.lower:.2f}"
    return (
        f"only {metrics[0]} speaks for this version, a judging model's word: it agrees with people by {lower} at least "
        f"over {counted(kappa.labels, 'label')}, where {AGREEMENT_MIN} over {LABELS_MIN} are needed; add another gate"
    )


def _incomparable(scores: Scores, in_force: Scores) -> str:
    if scores.model != in_force.model:
        return f"these are scores of {scores.model}, and those of the promoted version of {in_force.model}"
    if scores.test_set != in_force.test_set:
        return "the promoted version was scored on another test set; evaluate it on this one"
    if scores.scorer != in_force.scorer:
        return "the promoted version was scored by another scorer; evaluate it again by this one"
    return ""


def _is_guard(finding: Finding) -> bool:
    return finding.gate.kind == "no_harm" and finding.outcome not in ("error", "not_asked")


def _all(findings: Sequence[Finding]) -> str:
    return "; ".join(finding.reason for finding in findings)
