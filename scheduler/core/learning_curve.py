"""Learning curve: forecasts of a job's metric at later steps, with their uncertainty, from its checkpoints so far."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import erf, exp, fsum, inf, isfinite, log, sqrt
from operator import mul
from statistics import median
from typing import Literal

POINTS_MIN = 4
REACH = 4
"""A forecast reaches at most this many times the steps so far: its bands were never compared with later steps."""
_POINTS_MAX = 48  # of more points only this many are used, so that a fit takes milliseconds
_MAX = 1e308
_EXPONENTS = tuple(0.04 * 1.5**power for power in range(12))
_OFFSETS = (0.0, 0.05, 0.3, 1.0)  # added to the step, as shares of the steps so far
# Chosen with curves other than those on which benchmarks/bench_forecast.py counts how often the bands hold.
_RECENT, _WEIGHT_MIN = 2.0, 0.01  # the exponent of a point's weight, which is a power of its step; the least weight
_EVIDENCE = 0.4  # neighbouring checkpoints have similar errors: each is less informative than an independent one
_NOISE = 0.01  # the least noise, as a share of the values' range: no curve is assumed to be smoother
_DOUBT = 0.17  # the error of a law over a span of steps, as a share of its gain over the previous span
_DRIFT = 5.0  # the growth of the noise's variance while the steps become e times as many
_OUTLIER = 6.0  # a point that is off by more than this many usual changes between neighbours is an outlier
_RIDGE = 1e-4  # keeps the regression solvable when all points are equal


@dataclass(frozen=True, slots=True)
class Band:
    """The metric at a step: it is below ``low`` in 5 of 100 cases, below ``middle`` in 50, below ``high`` in 95."""

    step: int
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class _PowerLaw:
    """The law ``c + a x``, where x is 1 at the newest step and falls as a power of the step.

    ``cc``, ``ca`` and ``aa`` are the covariance of c and a in units of the ``noise``, a variance.
    """

    exponent: float
    offset: float
    c: float
    a: float
    cc: float
    ca: float
    aa: float
    noise: float
    evidence: float

    @classmethod
    def solve(cls, exponent: float, offset: float, steps: Sequence[float], values: Sequence[float]) -> "_PowerLaw":
        """Return the law that fits the values best, by ridge regression; steps are in units of the newest."""
        xs = [_falling(exponent, offset, step) for step in steps]
        weights = [max(_WEIGHT_MIN, step**_RECENT) for step in steps]
        weighted = [weight * x for weight, x in zip(weights, xs, strict=True)]
        s0, s1, s2 = fsum(weights) + _RIDGE, fsum(weighted), _dot(weighted, xs) + _RIDGE
        determinant = s0 * s2 - s1 * s1
        cc, ca, aa = s2 / determinant, -s1 / determinant, s0 / determinant
        t0, t1 = _dot(weights, values), _dot(weighted, values)
        c, a = cc * t0 + ca * t1, ca * t0 + aa * t1
        residual = fsum(w * (y - c - a * x) ** 2 for w, x, y in zip(weights, xs, values, strict=True))
        noise = (residual + _RIDGE * (c * c + a * a) + _NOISE**2) / (len(steps) - 1)
        evidence = -_EVIDENCE / 2 * (log(determinant) + len(steps) * log(noise))
        return cls(exponent, offset, c, a, cc, ca, aa, noise, evidence)

    def at(self, step: float) -> tuple[float, float]:
        """Return the mean and the scale of the value at a step from 1 on."""
        x, before = (_falling(self.exponent, self.offset, at) for at in (step, 1 / step))
        doubt = _DOUBT * self.a * (before - 1)
        variance = 1 + self.cc + 2 * self.ca * x + self.aa * x * x + _DRIFT * log(step)  # in units of the noise
        return self.c + self.a * x, sqrt(self.noise * max(1.0, variance) + doubt * doubt)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return fsum(map(mul, left, right))


def _falling(exponent: float, offset: float, step: float) -> float:  # x of _PowerLaw, 1 at step 1
    return float(((step + offset) / (1 + offset)) ** -exponent)


class LearningCurve:
    """Power laws with an asymptote, ``c + a (step + offset) ** -b``, weighted by how well they explain the points."""

    def __init__(self, points: Sequence[tuple[int, float]], aim: Literal["high", "low"] = "low") -> None:
        self._last = points[-1][0]
        self._unit = (max(abs(value) for _, value in points) or 1.0) * (1 if aim == "low" else -1)
        values = _without_outliers([value / self._unit for _, value in points])
        self._level, self._range = values[-1], (max(values) - min(values)) or 1e-9
        steps = [step / self._last for step, _ in points]
        scaled = [(value - self._level) / self._range for value in values]
        laws = [_PowerLaw.solve(*shape, steps, scaled) for shape in product(_EXPONENTS, _OFFSETS)]
        best = max(law.evidence for law in laws)
        weighted = [(weight, law) for law in laws if (weight := exp(law.evidence - best)) > 1e-4]
        total = fsum(weight for weight, _ in weighted)
        self._laws, self._freedom = [(weight / total, law) for weight, law in weighted], len(points) - 1

    def at(self, step: int) -> Band:
        """Return the band at a step; for an earlier step than the newest, the band at the newest."""
        parts = self._parts(step)
        ends = (self._unit * (self._level + self._range * self._quantile(parts, p)) for p in (0.05, 0.5, 0.95))
        return Band(step, *sorted(max(-_MAX, min(_MAX, end)) for end in ends))

    def chance(self, value: float, step: int) -> float:
        """Return the probability, from 0 to 1, that the metric is at least as good as ``value`` at a step."""
        return self._below(self._parts(step), (value / self._unit - self._level) / self._range)

    def _parts(self, step: int) -> list[tuple[float, float, float]]:  # (weight, mean, scale) of each law
        return [(weight, *law.at(max(1.0, step / self._last))) for weight, law in self._laws]

    def _below(self, parts: Sequence[tuple[float, float, float]], value: float) -> float:
        """Return the probability that a mixture of Student's distributions (weight, mean, scale) is below a value."""
        below, nu = 0.0, self._freedom
        for weight, mean, scale in parts:
            t = max(-1e6, min(1e6, (value - mean) / scale))
            below += weight * erf(t * (1 - 1 / (4 * nu)) / sqrt(2 + t * t / nu))  # accurate to some thousandths
        return 0.5 + 0.5 * max(-1.0, min(1.0, below))

    def _quantile(self, parts: Sequence[tuple[float, float, float]], chance: float) -> float:
        low = min(mean - 30 * scale for _, mean, scale in parts)
        high = max(mean + 30 * scale for _, mean, scale in parts)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if self._below(parts, middle) >= chance else (middle, high)
        return high


def forecast_of(points: Iterable[tuple[int, float]], aim: Literal["high", "low"] = "low") -> LearningCurve | None:
    """Return the curve of (step, metric), the last of each step; None if fewer than four steps have a finite metric."""
    finite = {step: value for step, value in points if step > 0 and isfinite(value) and abs(value) <= _MAX}
    every = -(-len(finite) // _POINTS_MAX)
    return LearningCurve(sorted(finite.items())[::-1][::every][::-1], aim) if len(finite) >= POINTS_MIN else None


def _without_outliers(values: Sequence[float]) -> list[float]:
    """Return the values; an outlier is replaced by the median of its neighbourhood."""
    local = [median(values[max(0, at - 2) : at + 3]) for at in range(len(values))]
    limit = _OUTLIER * median(abs(after - before) for before, after in pairwise(values)) or inf
    inner = range(2, len(values) - 2)
    return [local[at] if at in inner and abs(value - local[at]) > limit else value for at, value in enumerate(values)]
