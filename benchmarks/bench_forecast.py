"""How often the 90 % bands of learning curves hold, how far their middles are off, and what the stop rule does.

Curves are generated (power laws, exponentials, logarithms, falling learning rates and overfitting, with noise that is
alike from one checkpoint to the next, and spikes) or recorded by `curves_record.py`, whose own runs the constants of
the forecast were not chosen with. Each curve is cut at several checkpoints and forecast at 1.25 to 4 times as many
steps. Errors are shares of the curve's range. The rule is asked at every checkpoint, as the daemon asks it.

    python benchmarks/bench_forecast.py [--curves 200]
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, linear_regression, median

from jobs.spec import StopRule
from scheduler.core.early_stop import Scored, progress
from scheduler.core.learning_curve import forecast_of

Curve = list[tuple[int, float]]
HOLDS = (0.85, 0.95)
WRONG_STOPS_MAX = 0.05
VALUES = (-0.3, -0.2, -0.1, -0.05, 0.0, 0.05, 0.1)  # shares of the range
CUTS, LONGER = (4, 6, 10, 16, 24, 32), (1.25, 1.5, 2.0, 3.0, 4.0)
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


def show_bands(title: str, curves: Sequence[tuple[str, Curve]]) -> bool:
    """Print coverage and errors; return whether the bands hold as often as they should."""
    holds: dict[str, list[bool]] = {}
    errors: dict[str, list[float]] = {"forecast": [], "last value": [], "straight line": []}
    for kind, curve in curves:
        values = [value for _, value in curve]
        whole = max(values) - min(values)
        for cut in CUTS:
            if (forecast := forecast_of(curve[:cut])) is None:
                continue
            for step, value in (curve[at - 1] for k in LONGER if cut < (at := round(cut * k)) <= len(curve)):
                band = forecast.at(step)
                holds.setdefault(kind, []).append(band.low <= value <= band.high)
                half = curve[cut // 2 : cut]
                line = linear_regression([float(one) for one, _ in half], [one for _, one in half])
                for name, middle in (
                    ("forecast", band.middle),
                    ("last value", half[-1][1]),
                    ("straight line", line.slope * step + line.intercept),
                ):
                    errors[name].append(abs(middle - value) / whole)
    share = fmean(one for each in holds.values() for one in each)
    print(f"{title}: 90 % bands hold {share:.1%} of {sum(map(len, holds.values())):,} values of {len(curves)} curves")
    print(f"  {', '.join(f'{kind} {fmean(each):.0%}' for kind, each in sorted(holds.items()))}")
    for name, each in errors.items():
        print(f"  error of {name + ':':15} mean {fmean(each):6.2%}, median {median(each):6.2%} of the range")
    return HOLDS[0] <= share <= HOLDS[1]


def stopped_at(curve: Curve, value: float) -> int:
    """Return at how many checkpoints the rule ends a training to the curve's last step, 0 for never."""
    rule, target = StopRule("loss", value=value, forecast=0.95), curve[-1][0]
    history = [Scored(str(step), step, loss) for step, loss in curve]
    return next((at for at in range(1, len(curve)) if progress(rule, history[:at], target).why), 0)


def show_rule(title: str, curves: Sequence[tuple[str, Curve]]) -> bool:
    """Print how often the rule ends a training that would reach its value, and what it saves of those that would not.

    Values lie around the best of each curve.
    """
    wrong, saved = [], []
    for _, curve in curves:
        values = [value for _, value in curve]
        best, whole = min(values), max(values) - min(values)
        for above in VALUES:
            at = stopped_at(curve, best + above * whole)
            if at:
                wrong.append(above >= 0 and min(values[:at]) > best + above * whole)
            if above < 0:
                saved.append(1 - at / len(curve) if at else 0.0)
    print(
        f"{title}: of {len(wrong)} trainings that the rule ends, {fmean(wrong):.1%} would have reached their value; it "
        f"saves {fmean(saved):.0%} of the steps of those that would not"
    )
    return fmean(wrong) <= WRONG_STOPS_MAX


def main() -> int:
    """Print the figures; return 1 if one misses what is asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curves", type=int, default=200)
    count = parser.parse_args().curves
    sets = {"generated": [generated(seed) for seed in range(count)], "recorded": list(recorded())}
    good = [show_bands(title, curves) for title, curves in sets.items()]
    good += [show_rule(title, curves) for title, curves in sets.items()]
    return not all(good)


if __name__ == "__main__":
    raise SystemExit(main())
