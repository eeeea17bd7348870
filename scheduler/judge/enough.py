"""Enough: how large a test set must be, told before anybody trains for a gate that it can never pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.judge.binomial import ALPHA
from scheduler.judge.sign_flip import clusters_needed
from scheduler.judge.threshold import surely_needed

if TYPE_CHECKING:
    from jobs.quality_gate import QualityGate


def smallest_set(gate: QualityGate, guards: int = 1) -> int:
    """Return the size of a test set below which a gate can never decide as it is meant to.

    A threshold by its bound needs so many items to pass, a comparison so many clusters (independent items); a guard,
    one of ``guards``, can never refuse with fewer clusters.
    """
    if gate.kind == "threshold":
        if gate.by == "point":
            return 1
        if gate.minimum is not None:
            return surely_needed(gate.minimum)
        return surely_needed(1 - (gate.maximum or 0.0))
    return clusters_needed(ALPHA / guards if gate.kind == "no_harm" else ALPHA)
