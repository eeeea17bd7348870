"""Enough: how large a test set must be, told before anybody trains for a gate that it can never pass."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from scheduler.judge.binomial import ALPHA
from scheduler.judge.pairs import POWER_80
from scheduler.judge.sign_flip import clusters_needed
from scheduler.judge.threshold import surely_needed

if TYPE_CHECKING:
    from jobs.quality_gate import QualityGate

USUAL_DIFFERING = 0.2  # share of items on which two versions of a model usually differ


def smallest_set(gate: QualityGate, guards: int = 1) -> int:
    """Return the number of clusters (independent items) below which a gate can never decide as it is meant to.

    A threshold by its bound and the comparisons can never pass with fewer; a guard, one of ``guards``, never refuse.
    """
    if gate.kind == "threshold":
        if gate.by == "point":
            return 1
        if gate.minimum is not None:
            return surely_needed(gate.minimum)
        return surely_needed(1 - (gate.maximum or 0.0))
    return clusters_needed(ALPHA / guards if gate.kind == "no_harm" else ALPHA)


def advised_items(effect: float, differing: float = USUAL_DIFFERING, design_effect: float = 1.0) -> int:
    """Return how many items show a difference of ``effect`` (0.05: five points) in four of five cases."""
    return math.ceil(POWER_80**2 * differing * design_effect / effect**2)
