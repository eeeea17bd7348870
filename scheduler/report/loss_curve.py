"""Loss curve: a job's held-out loss over its steps, up to its target. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from scheduler.report.chart import GUTTER, Frame, curve, labels, short, ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOP, _FOOT = 14, 20
_DOTS_MAX = 60


def loss_curve_svg(
    job: str,
    points: Sequence[tuple[int, float]],
    target_step: int,
    width: int | None = None,
    height: int = 200,
    *,
    axes: bool = True,
    whole: bool = True,
) -> str:
    """Return the picture of (step, loss), nothing for fewer than two points; losses that are no numbers are left out.

    It spans all steps from 0 to the target, or if not ``whole`` those of its points alone. Without ``axes`` it is the
    line alone, as small as a word.
    """
    known = sorted((step, loss) for step, loss in points if math.isfinite(loss))
    if len(known) < 2:
        return ""
    frame = Frame(width)
    top, tall = (_TOP, height - _TOP - _FOOT) if axes else (3, height - 6)
    losses = [loss for _, loss in known]
    margin = (max(losses) - min(losses)) * 0.08 or max(abs(losses[0]) * 0.05, 1e-6)
    low, high = min(losses) - margin, max(losses) + margin
    left, right = (0, max(target_step, known[-1][0], 1)) if whole else (known[0][0], known[-1][0])

    def across(step: float) -> float:
        return (step - left) / max(1, right - left)

    placed = [(across(step), (high - loss) / (high - low)) for step, loss in known]
    parts: list[str] = []
    if axes:
        for value in ticks(low, high):
            y = top + tall * (high - value) / (high - low)
            parts.append(f'<line class="grid" x1="0" x2="{frame.x(1)}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{-GUTTER}" y="{y + 4:.1f}">{value:g}</text>')
        steps = [(across(step), short(step)) for step in ticks(left, right, 5)]
        for x, style, text in labels(frame, steps, (0.02, 0.95)):
            parts.append(f'<text class="{style}" x="{frame.x(x)}" y="{height - 4}">{text}</text>')
        if target_step and whole:
            at = frame.x(across(target_step))
            parts.append(f'<line class="edge" x1="{at}" x2="{at}" y1="{top}" y2="{top + tall}"/>')
    parts.append(curve(frame, placed, top, tall, "measured"))
    if axes and len(placed) <= _DOTS_MAX:
        parts += [f'<circle class="dot" cx="{frame.x(x)}" cy="{top + tall * y:.1f}" r="2.5"/>' for x, y in placed]
    elif not axes:
        x, y = placed[-1]
        parts.append(f'<circle class="dot" cx="{frame.x(x)}" cy="{top + tall * y:.1f}" r="2.5"/>')
    more = (
        f"From {losses[0]:.4g} at step {known[0][0]:,} to {losses[-1]:.4g} at step {known[-1][0]:,} "
        f"of {target_step:,}; the lowest is {min(losses):.4g}."
    )
    return frame.document(parts, height, f"Held-out loss of {job} over steps", more, GUTTER if axes else 0)
