"""Curves of a held-out loss, generated or recorded by `benchmarks/curves_record.py`, to hold forecasts against."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from jobs.spec import StopRule
from scheduler.core.early_stop import Scored, progress

Curve = list[tuple[int, float]]
CUTS = (4, 6, 10, 16, 24, 32)
"""The numbers of checkpoints after which a curve is forecast."""
KINDS: dict[str, Callable[[float, float], float]] = {  # by exponent, and share of the steps
    "power": lambda power, part: (60 * part) ** -power,
    "late": lambda power, part: (60 * part + 4) ** -power,
    "exponential": lambda power, part: math.exp(-4 * power * part),
    "logarithm": lambda _, part: -0.1 * math.log(60 * part),
    "falling rate": lambda power, part: (60 * part) ** -power - 0.04 * (1 - math.cos(math.pi * part)),
    "overfitting": lambda power, part: (60 * part) ** -power + 0.05 * part**2,
}


def generated(seed: int) -> tuple[str, Curve]:
    """Return one curve with its kind."""
    dice = random.Random(seed)
    kind = dice.choice(list(KINDS))
    count, every, power = dice.choice((20, 40, 60)), dice.choice((1, 50, 250)), dice.uniform(0.15, 1.2)
    floor, height, alike = dice.uniform(0.2, 3), math.exp(dice.uniform(-1.2, 1.8)), dice.choice((0.0, 0.5, 0.8))
    noise, error = height * math.exp(dice.uniform(-9, -4)), 0.0
    curve = []
    for number in range(1, count + 1):
        error = alike * error + math.sqrt(1 - alike**2) * dice.gauss(0, noise)
        spike = 10 * noise * dice.random() if dice.random() < 0.01 else 0.0
        curve.append((number * every, floor + height * KINDS[kind](power, number / count) + error + spike))
    return kind, curve


def recorded() -> Iterator[tuple[str, Curve]]:
    """Yield the curves of real trainings."""
    rows = json.loads(Path(__file__).with_name("curves.json").read_text())
    for name, points in rows.items():
        yield name.split(",")[0] + ", falling rate" * ("cosine" in name), [(step, value) for step, value in points]


def stopped_at(curve: Curve, value: float) -> int:
    """Return at how many checkpoints the rule ends a training to the curve's last step, 0 for never."""
    rule, target = StopRule("loss", value=value, forecast=0.95), curve[-1][0]
    history = [Scored(str(step), step, loss) for step, loss in curve]
    return next((at for at in range(1, len(curve)) if progress(rule, history[:at], target).why), 0)
