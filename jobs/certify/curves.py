"""Curves: compare what a resumed run reported and saved with a run that was never interrupted."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import stdev

from jobs.certify.findings import EXACT, SAME_STATE, ResumeFinding
from jobs.lane_report import GPU_METRICS
from jobs.payload.store.manifest import sha256_file

_TIMINGS = {"step", "tokens_per_second", "step_seconds_p90", *GPU_METRICS}
_ROUNDING = 1e-6  # largest relative change by another order of additions
_JUMP = 3.0  # standard deviations
_WINDOW = 200  # steps whose losses are compared to recognise data
_LEAST = 3  # losses that are needed for that
_NEAR = 50  # steps before and after the interruption whose losses show the noise
_ALIKE = 5.0  # least correlation of equal data, in standard deviations of the correlation of random losses

Curve = Mapping[int, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Uninterrupted:
    """Two runs without an interruption: the values of the first by step, and digests of its last checkpoint's files.

    ``noise`` has the largest difference of both runs by name of the value, ``steady`` the files that are equal in both.
    """

    values: Curve
    files: Mapping[str, str]
    noise: Mapping[str, float]
    steady: frozenset[str]

    @property
    def deterministic(self) -> bool:
        """Whether both runs are bit-identical."""
        return not any(self.noise.values()) and self.steady == self.files.keys()


def uninterrupted(first: Curve, second: Curve, files: Mapping[str, str], other: Mapping[str, str]) -> Uninterrupted:
    """Return the first of two uninterrupted runs, with the differences between them."""
    noise: dict[str, float] = {}
    for step in first.keys() & second.keys():
        for name, difference in _differences(first[step], second[step]).items():
            noise[name] = max(noise.get(name, 0.0), difference)
    return Uninterrupted(first, files, noise, frozenset(name for name in files if other.get(name) == files[name]))


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of a checkpoint's files by name, without its metrics."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != "meta.json")
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in paths}


def compare(
    resumed: Curve, files: Mapping[str, str], since: int, straight: Uninterrupted, *, moved: bool = False
) -> tuple[str, list[ResumeFinding]]:
    """Return the level of a run that continued from step ``since``, and its findings.

    A run that ``moved`` to other devices adds in another order: differences below the noise of the loss do not count.
    """
    steps = sorted(step for step in resumed.keys() & straight.values.keys() if step > since)
    near = (values for step, values in sorted(straight.values.items()) if abs(step - since) <= _NEAR)
    spread = _spread([values["loss"] for values in near if "loss" in values])
    exact, differing = True, []
    for step in steps:
        expected = straight.values[step]
        for name, difference in _differences(expected, resumed[step]).items():
            limit = max(2 * straight.noise.get(name, 0.0), _ROUNDING * abs(expected[name]), spread if moved else 0.0)
            exact = exact and difference == 0
            if not difference <= limit:
                differing.append((step, name))
    wrong = sorted(name for name in straight.files if files.get(name) != straight.files[name])
    if differing:
        finding = _classify(resumed, steps, since, straight, spread, differing)
        return finding.level, [finding]
    if exact and not moved and any(name in straight.steady for name in wrong):
        message = f"all that was reported is the same, but {', '.join(wrong)} of the last checkpoint is not"
        kind = "other_files" if any(len(resumed[step]) > 1 for step in steps) else "other_state"  # nothing but steps
        finding = ResumeFinding(kind, message)
        return finding.level, [finding]
    return (EXACT if exact and not wrong else SAME_STATE), []


def _classify(
    resumed: Curve,
    steps: Sequence[int],
    since: int,
    straight: Uninterrupted,
    spread: float,
    differing: Sequence[tuple[int, str]],
) -> ResumeFinding:
    """Return the finding for a run that differs; its kind follows from which values differ, and at which steps."""
    step, name = differing[0]
    ours, theirs = resumed[step][name], straight.values[step][name]
    log = json.dumps({"step": step, **{key: value for key, value in resumed[step].items() if key != "step"}})
    text = f"{name} is {ours:.6g} at step {step} and {theirs:.6g} without the interruption"
    size = abs(ours - theirs) / spread if spread and name == "loss" else 0.0
    measured = [each for each in steps if _has_loss(straight, each) and "loss" in resumed[each]]
    losses = [resumed[each]["loss"] for each in measured]
    at, same, own, best = _match(losses[:_WINDOW], measured, straight)
    alike = _ALIKE / math.sqrt(min(_WINDOW, len(losses)) or 1)
    full_text = f"{text}, {size:.2g} standard deviations of the loss" if size else text
    kind, message = "other_numbers", full_text
    # Weights that are wrong at the first loss are wrong at all later losses.
    if len(measured) > 1 and step > since + 1 and [*differing] == [(measured[0], "loss")]:
        kind, message = "first_mean", f"{text}; all that follows is the same, so it is a mean over fewer steps"
    elif same:
        kind, message = "older_state", f"resumed at step {since}, it continues from the state of step {at}"
    elif best >= alike and best > own:
        kind = "repeated_data"
        message = f"from step {since} on it uses the data or the random numbers of step {at} on again: {text}"
    elif measured and (step > measured[0] or name != "loss"):
        kind, message = "other_update", f"the first loss is right, what follows is not: {full_text}"
    elif size > _JUMP:
        kind = "loss_jump"
    elif own >= alike:
        kind, message = "other_state", f"the data are right, something else is not: {full_text}"
    return ResumeFinding(kind, message, log)


def _match(losses: Sequence[float], steps: Sequence[int], straight: Uninterrupted) -> tuple[int, bool, float, float]:
    """Return the step after which the uninterrupted run has the losses most like these, and whether they are equal.

    Also return the correlations, without trends, with losses of the same steps, and with losses after that step.
    """
    if len(losses) < _LEAST:
        return 0, False, 0.0, 0.0
    whole = [(step, straight.values[step]["loss"]) for step in sorted(straight.values) if _has_loss(straight, step)]
    curve, losses_detrended, own, best = [loss for _, loss in whole], _without_trend(losses), 0.0, (-2.0, 0)
    curve_detrended = _without_trend(curve)
    for offset in range(len(curve) - len(losses) + 1):
        alike = _correlation(losses_detrended, curve_detrended[offset : offset + len(losses)])
        if whole[offset][0] == steps[0]:
            own = alike
        else:
            best = max(best, (alike, offset))
    at = best[1]
    same = all(abs(one - other) <= _ROUNDING * abs(other) for one, other in zip(losses, curve[at:], strict=False))
    return whole[at][0] - 1, same and best[0] > own, own, best[0]


def _without_trend(losses: Sequence[float]) -> list[float]:
    """Return losses without their trend: each loss minus the mean of itself and its four neighbours."""
    windows = (losses[max(0, at - 2) : at + 3] for at in range(len(losses)))
    return [loss - sum(window) / len(window) for loss, window in zip(losses, windows, strict=True)]


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    product = math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))
    return sum(a * b for a, b in zip(one, other, strict=True)) / product if product else 0.0


def _spread(losses: Sequence[float]) -> float:
    """Return the standard deviation of the noise of one loss, from the changes between steps."""
    changes = [after - before for before, after in pairwise(losses)]
    return stdev(changes) / math.sqrt(2) if len(changes) > 1 else 0.0


def _differences(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Return the absolute differences of two reports by name; a value that is NaN in both does not differ."""
    names = sorted((one.keys() & other.keys()) - _TIMINGS, key=lambda name: name != "loss")
    both = {name: (one[name], other[name]) for name in names}
    return {n: 0.0 if a == b or (math.isnan(a) and math.isnan(b)) else abs(a - b) for n, (a, b) in both.items()}


def _has_loss(straight: Uninterrupted, step: int) -> bool:
    return "loss" in straight.values[step]
