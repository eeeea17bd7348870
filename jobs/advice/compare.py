"""Several machines side by side: the best choice on each, and a picture of time against money. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from math import log10

from jobs.advice.card import Card
from jobs.advice.choice import Advice, Choice, Wishes, advise
from jobs.advice.seen import Measurement
from jobs.advice.shape import Shape

_WIDE, _HIGH, _LEFT, _TOP = 720, 420, 70, 30


def compare(
    shape: Shape,
    machines: Sequence[tuple[Card, int, float | None]],
    wishes: Wishes,
    measurements: Sequence[Measurement],
) -> list[Advice]:
    """Return the advice for each machine (card, how many, dollars an hour or None), in the order of their names."""
    return [
        advise(shape, card, count, wishes if price is None else replace(wishes, usd_per_hour=price), measurements)
        for card, count, price in machines
    ]


def picture(advices: Sequence[Advice]) -> str:
    """Return an SVG of hours (P50, with a line to P90) against money, both on logarithmic axes.

    Where no hour has a price, money is electricity. Machines on which nothing fits are named below.
    """
    choices = [(advice, advice.best) for advice in advices if advice.best is not None]
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {_HIGH}" '
            'font-family="sans-serif" font-size="12" role="img" aria-label="Money against hours on each machine">'
        ),
        f'<rect width="{_WIDE}" height="{_HIGH}" fill="white"/>',
    ]
    if choices:
        across = _Axis([hours for _, one in choices for hours in (one.hours, one.hours_p90)], _LEFT, _WIDE - 30)
        up = _Axis([max(0.01, one.usd) for _, one in choices], _HIGH - 60, _TOP)
        lines += _axes(across, up)
        for advice, one in choices:
            lines += _mark(advice, one, across, up)
    out = [f"{one.card.name} x{one.devices}" for one in advices if one.best is None]
    if out:
        lines.append(f'<text x="{_LEFT}" y="{_HIGH - 6}" fill="#b3352a">does not fit: {escape(", ".join(out))}</text>')
    return "\n".join([*lines, "</svg>", ""])


class _Axis:
    """A logarithmic axis from a little below the least to a little above the most."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low = log10(max(1e-4, min(values))) - 0.15
        self.high = log10(max(1e-4, *values)) + 0.25
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        return self._start + (log10(max(1e-4, value)) - self.low) / (self.high - self.low) * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Return round values within it."""
        every = [step * 10.0**power for power in range(-4, 8) for step in (1, 2, 5)]
        return [value for value in every if self.low <= log10(value) <= self.high]


def _axes(across: _Axis, up: _Axis) -> list[str]:
    bottom = _HIGH - 60
    lines = [f'<path d="M{_LEFT} {_TOP}V{bottom}H{_WIDE - 30}" fill="none" stroke="#59616b"/>']
    for value in across.ticks():
        x = across.at(value)
        lines.append(f'<text x="{x:.0f}" y="{bottom + 16}" text-anchor="middle" fill="#59616b">{value:g} h</text>')
    lines += [
        f'<text x="{_LEFT - 6}" y="{up.at(value):.0f}" text-anchor="end" fill="#59616b">${value:g}</text>'
        for value in up.ticks()
    ]
    lines.append(f'<text x="{_LEFT}" y="18" fill="#59616b">money against time; the line reaches to nine in ten</text>')
    return lines


def _mark(advice: Advice, one: Choice, across: _Axis, up: _Axis) -> list[str]:
    x, y = across.at(one.hours), up.at(max(0.01, one.usd))
    name = escape(f"{advice.card.name} x{advice.devices} ({one.rung})")
    return [
        f'<path d="M{x:.0f} {y:.0f}H{across.at(one.hours_p90):.0f}" stroke="#1d5fbf" stroke-opacity=".4"/>',
        f'<circle cx="{x:.0f}" cy="{y:.0f}" r="5" fill="#1d5fbf"><title>{name}</title></circle>',
        f'<text x="{x + 8:.0f}" y="{y - 6:.0f}" fill="#1b1e22">{name}</text>',
    ]
