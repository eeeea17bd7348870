"""Arms of an A/B test: two ways of training held against each other, with runs as the clusters.

A run is one model trained with one seed both ways. All items of a run depend on its seed, so that a thousand of them
are one piece of evidence: items alone would call half of all equal approaches different.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from jobs.quality_gate import QualityGate
from scheduler.judge.comparison import comparison_finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal

    from jobs.scores import Score, Scores
    from scheduler.judge.judgement import Finding

Pair = tuple["Scores", "Scores"]


def compare_arms(pairs: Mapping[str, Pair], aims: Mapping[str, Literal["high", "low"]]) -> list[Finding]:
    """Return by metric whether the second arm is better than the first; ``pairs`` are both scores of each run.

    Metrics that not all runs have on the same items are left out. ``aims`` say where good is, high where nothing is
    said.
    """
    if not pairs:
        return []
    metrics = set.intersection(*(set(one.by_metric) for pair in pairs.values() for one in pair))
    found = []
    for metric in sorted(metrics):
        first, second = ({run: pair[arm].by_metric[metric] for run, pair in pairs.items()} for arm in (0, 1))
        if all(first[run].keys() == second[run].keys() for run in pairs):
            gate = QualityGate(metric, "better", aim=aims.get(metric, "high"))
            found.append(comparison_finding(gate, _together(second), _together(first)))
    return found


def aims_of(gates: Sequence[QualityGate]) -> dict[str, Literal["high", "low"]]:
    """Return where good is, as gates on the same metrics say it."""
    return {gate.metric: "low" if gate.maximum is not None else gate.aim for gate in gates}


def _together(runs: Mapping[str, Mapping[str, Score]]) -> dict[str, Score]:
    """Return the scores of all runs as items of one set, of which each run is a cluster."""
    return {
        f"{run}/{item}": replace(score, item=f"{run}/{item}", cluster=run)
        for run, scores in runs.items()
        for item, score in scores.items()
    }
