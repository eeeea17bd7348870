"""How often the 90 % bands of learning curves hold, how far their middles are off, and what the stop rule does.

Curves are generated (power laws, exponentials, logarithms, falling learning rates and overfitting, with noise that is
alike from one checkpoint to the next, and spikes) or recorded by `curves_record.py`, whose own runs the constants of
the forecast were not chosen with. Each curve is cut at several checkpoints and forecast at 1.25 to 4 times as many
steps. Errors are shares of the curve's range. The rule is asked at every checkpoint, as the daemon asks it.

    python benchmarks/bench_forecast.py [--curves 200]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import fmean, linear_regression, median

from scheduler.core.learning_curve import forecast_of
from tests.lab.curves import CUTS, Curve, generated, recorded, stopped_at

HOLDS = (0.85, 0.95)
WRONG_STOPS_MAX = 0.05
VALUES = (-0.3, -0.2, -0.1, -0.05, 0.0, 0.05, 0.1)  # shares of the range
LONGER = (1.25, 1.5, 2.0, 3.0, 4.0)


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


def show_rule(title: str, curves: Sequence[tuple[str, Curve]]) -> bool:
    """Print how often the rule ends a training that would reach its value, and what it saves of those that would not.

    Values lie around the best of each curve.
    """
    wrong, saved = [], []
    for _, curve in curves:
        values = [value for _, value in curve]
        best, whole = min(values), max(values) - min(values)
        for above in VALUES:
            goal = best + above * whole
            at = stopped_at(curve, goal)
            if at and min(values[:at]) > goal:  # before it was reached
                wrong.append(above >= 0)
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
