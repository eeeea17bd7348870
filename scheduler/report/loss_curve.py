"""Loss curves: the held-out loss of a job and the training loss of its sessions, over steps. Pure."""

import math
from collections.abc import Mapping, Sequence

from scheduler.report.chart import GUTTER, Frame, curve, hues_of, labels, short, ticks, words

_TOP, _FOOT = 14, 20
_DOTS_MAX = 60
_SMOOTHED = 0.02  # each smoothed point is the mean of this share of all points


def loss_curve_svg(  # noqa: PLR0913 - one parameter for each thing that a picture may leave out
    job: str,
    points: Sequence[tuple[int, float]],
    target_step: int,
    width: int | None = None,
    height: int = 200,
    *,
    axes: bool = True,
    whole: bool = True,
    training: Sequence[tuple[int, float]] = (),
    marks: Sequence[int] = (),
    log: bool = False,
) -> str:
    """Return the SVG of (step, held-out loss); empty for fewer than two finite points.

    ``training`` is (step, training loss), drawn raw and smoothed. ``marks`` are the first steps of the sessions. With
    ``whole`` the picture goes from step 0 to the target, else from the first to the last point. Without ``axes`` it is
    a sparkline. ``log`` draws the logarithm of positive losses.
    """
    held_out, trained = (
        sorted((step, loss) for step, loss in each if math.isfinite(loss) and (loss > 0 or not log))
        for each in (points, training)
    )
    every = [*held_out, *trained]
    if max(len(held_out), len(trained)) < 2:
        return ""
    frame = Frame(width)
    top, tall = (_TOP, height - _TOP - _FOOT) if axes else (3, height - 6)
    scale = math.log10 if log else float
    losses = [scale(loss) for _, loss in every]
    margin = (max(losses) - min(losses)) * 0.08 or max(abs(losses[0]) * 0.05, 1e-6)
    low, high = min(losses) - margin, max(losses) + margin
    first, last = min(step for step, _ in every), max(step for step, _ in every)
    left, right = (0, max(target_step, last, 1)) if whole else (first, last)

    def across(step: float) -> float:
        return (step - left) / max(1, right - left)

    def place(each: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
        return [(across(step), (high - scale(loss)) / (high - low)) for step, loss in each]

    parts: list[str] = []
    if axes:
        parts += _axes(frame, (low, high), (left, right), top, tall, log=log)
        if target_step and whole:
            at = frame.x(across(target_step))
            parts.append(f'<line class="edge" x1="{at}" x2="{at}" y1="{top}" y2="{top + tall}"/>')
        for step in marks:
            at = frame.x(across(step))
            parts.append(f'<line class="pace" x1="{at}" x2="{at}" y1="{top}" y2="{top + tall}"/>')
    if len(trained) > 1:
        parts.append(curve(frame, place(trained), top, tall, "told"))
        parts.append(curve(frame, place(smoothed(trained)), top, tall, "smooth" if len(held_out) > 1 else "measured"))
    placed = place(held_out)
    if len(placed) > 1:
        parts.append(curve(frame, placed, top, tall, "measured"))
    dots = placed if axes and len(placed) <= _DOTS_MAX else [] if axes else (placed or place(smoothed(trained)))[-1:]
    parts += [f'<circle class="dot" cx="{frame.x(x)}" cy="{top + tall * y:.1f}" r="2.5"/>' for x, y in dots]
    what, drawn = ("Held-out loss", held_out) if len(held_out) > 1 else ("Loss", trained)
    more = (
        f"From {drawn[0][1]:.4g} at step {drawn[0][0]:,} to {drawn[-1][1]:.4g} at step {drawn[-1][0]:,} "
        f"of {target_step:,}; the lowest is {min(loss for _, loss in drawn):.4g}."
    )
    return frame.document(parts, height, f"{what} of {job} over steps", more, GUTTER if axes else 0)


def compare_losses_svg(
    curves: Mapping[str, Sequence[tuple[int, float]]], width: int | None = None, height: int = 260, *, log: bool = False
) -> str:
    """Return the SVG of several jobs' smoothed (step, loss); empty if no job has two finite points.

    The n-th job has the n-th colour of :data:`scheduler.report.chart.HUES`.
    """
    scale = math.log10 if log else float
    drawn = {
        name: [(step, scale(loss)) for step, loss in points if math.isfinite(loss) and (loss > 0 or not log)]
        for name, points in curves.items()
    }
    every = [point for points in drawn.values() if len(points) > 1 for point in points]
    if not every:
        return ""
    frame, top, tall = Frame(width), _TOP, height - _TOP - _FOOT
    losses = [loss for _, loss in every]
    margin = (max(losses) - min(losses)) * 0.08 or max(abs(losses[0]) * 0.05, 1e-6)
    low, high, right = min(losses) - margin, max(losses) + margin, max(1, *(step for step, _ in every))
    parts = _axes(frame, (low, high), (0, right), top, tall, log=log)
    for (name, points), hue in zip(drawn.items(), hues_of(drawn).values(), strict=True):
        placed = [(step / right, (high - loss) / (high - low)) for step, loss in smoothed(points)]
        if len(placed) > 1:
            parts.append(f"<g><title>{words(name)}</title>{curve(frame, placed, top, tall, f'line h{hue}')}</g>")
    return frame.document(parts, height, f"Loss of {', '.join(drawn)} over steps", "", GUTTER)


def _axes(
    frame: Frame, losses: tuple[float, float], steps: tuple[float, float], top: int, tall: int, *, log: bool
) -> list[str]:
    """Return the grid with its numbers; ``losses`` are (lowest, highest) as drawn, ``steps`` (first, last)."""
    (low, high), (left, right) = losses, steps
    parts = []
    for value in ticks(low, high):
        y = top + tall * (high - value) / (high - low)
        parts.append(f'<line class="grid" x1="0" x2="{frame.x(1)}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{-GUTTER}" y="{y + 4:.1f}">{10**value if log else value:.4g}</text>')
    marks = [((step - left) / max(1, right - left), short(step)) for step in ticks(left, right, 5)]
    for x, style, text in labels(frame, marks, (0.02, 0.95)):
        parts.append(f'<text class="{style}" x="{frame.x(x)}" y="{top + tall + _FOOT - 4}">{text}</text>')
    return parts


def smoothed(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the moving average of the points; the window shrinks at both ends."""
    reach = round(len(points) * _SMOOTHED / 2)
    result = []
    for index, (step, _) in enumerate(points):
        near = points[max(0, index - reach) : index + reach + 1]
        result.append((step, math.fsum(loss for _, loss in near) / len(near)))
    return result
