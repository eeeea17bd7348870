"""Judgements: a verdict and, gate by gate, all that it rests on. Plain values, to be stored and shown as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from jobs.job_table import written_table
from jobs.spec import QualityGate

Verdict = Literal["accepted", "rejected", "inconclusive", "error"]
Unclear = Literal["", "not_enough_items", "harm_unclear"]
Outcome = Literal["passed", "failed", "not_enough_items", "harm_unclear", "error", "not_asked"]
Test = Literal["point", "bound", "sign-flip", "McNemar", ""]


@dataclass(frozen=True, slots=True)
class Example:
    """An item that counted against the version; ``before`` is its value in the promoted version."""

    item: str
    value: float
    before: float | None
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What one gate found, and what this set could have shown.

    ``value`` is the version's mean, ``before`` of the promoted one, ``gain`` their difference, positive where good.
    ``differing`` (p_d) is the share of items that differ at all, ``design_effect`` how many of the items are worth one
    independent one. ``low`` and ``high`` are one-sided 95 % bounds of the gain, or of the value for a threshold.
    ``smallest_effect`` would have shown in four of five such sets. ``not_asked``: no version is promoted.
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

    def decided(self, outcome: Outcome, reason: str) -> Finding:
        """Return it with its outcome."""
        return replace(self, outcome=outcome, reason=reason)

    def document(self) -> dict[str, Any]:
        """Return it in plain JSON types."""
        fields = asdict(self)
        return fields | {"gate": written_table(self.gate), "examples": [asdict(example) for example in self.examples]}


@dataclass(frozen=True, slots=True)
class Judgement:
    """One verdict. ``unclear`` says of an inconclusive one what it wants: more items, or a look at a guard."""

    verdict: Verdict
    unclear: Unclear
    reason: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()  # how it was scored, as the scorer says
    leaks: Mapping[str, Any] | None = None  # which items were seen in training, and by which ancestor

    def document(self) -> dict[str, Any]:
        """Return it in plain JSON types."""
        findings = [finding.document() for finding in self.findings]
        data = {"verdict": self.verdict, "unclear": self.unclear, "reason": self.reason, "findings": findings}
        return {**data, "notes": list(self.notes), "leaks": self.leaks}
