"""Synthetic traces: what public logs of GPU clusters have in common, drawn at random, the same for the same seed.

Sizes are heavy-tailed (most jobs take minutes, one in fifty most of the hours), arrivals follow the hours of the day
and come in bursts, one in ten jobs wants several GPUs. Public logs themselves are not kept here.
"""

from __future__ import annotations

from math import exp, pi, sin
from random import Random
from typing import Literal

from jobs.nouns.window import DAY, HOUR
from tests.lab.planner.trace import Row

Kind = Literal["plain", "due", "mixed", "weights"]
# plain: hours alone; due: every job has a deadline; mixed: a third has; weights: over three decades, a third due.
KINDS: tuple[Kind, ...] = ("plain", "due", "mixed", "weights")
DUE: dict[Kind, float] = {"plain": 0.0, "due": 1.0, "mixed": 0.33, "weights": 0.33}


def synthetic(kind: Kind, count: int, seed: int) -> list[Row]:
    """Return ``count`` jobs by submit, a hundred of which come in a day."""
    rng = Random(f"{kind}-{seed}")
    rows: list[Row] = []
    now = 0.0
    while len(rows) < count:
        daily = 1.0 + 0.9 * sin(2 * pi * now / DAY)
        now += rng.expovariate(100 / DAY * max(0.1, daily))
        burst = rng.choice((1, 1, 1, 1, 2, 8)) if rng.random() < 0.2 else 1
        size = rng.lognormvariate(0.0, 1.9)
        for _ in range(min(burst, count - len(rows))):
            duration = max(60.0, 0.4 * HOUR * size * rng.uniform(0.8, 1.25))
            devices = rng.choice((2, 4, 8)) if rng.random() < 0.1 else 1
            slack = rng.uniform(1.2, 10.0) if rng.random() < DUE[kind] else None
            weight = exp(rng.uniform(0.0, 6.9)) if kind == "weights" else 1.0
            rows.append(Row(now, duration, float(devices), slack, weight))
    return rows
