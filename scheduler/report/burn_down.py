"""Burn-down charts: the unused part of a quota over its window, as measured and as planned. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from jobs.nouns.quota import MoneyQuota, Quota, RollingQuota, charges_by_device
from jobs.nouns.window import Window
from scheduler.core.ledger import Charge
from scheduler.core.quota import ObservedLimit, limit_at, windows
from scheduler.report.chart import GUTTER, Frame, curve, days, labels, local, ticks, words

_TOP, _FOOT = 8, 20
_SMALL_POINTS = 40


@dataclass(frozen=True, slots=True)
class BurnDown:
    """The unused amount of a quota over time: (instant, amount left), in ``unit``.

    ``measured`` goes from the window's start to now, ``ahead`` continues with reserved and planned sessions. The chart
    of a rolling quota shows the length of the quota before and after now. Use older than that length does not count.
    """

    pool: str
    quota: str
    unit: Literal["seconds", "microdollars"]
    start: int
    end: int
    now: int
    limit: int
    rolling: bool
    measured: tuple[tuple[int, int], ...]
    ahead: tuple[tuple[int, int], ...]

    @property
    def left(self) -> int:
        """The amount left now. Reserved time does not count before it has passed."""
        return self.measured[-1][1]

    @property
    def left_at_end(self) -> int:
        """The amount that the plan leaves unused at the end of the window."""
        return self.ahead[-1][1]


def burn_down_of(
    pool: str,
    quota: Quota,
    charges: Sequence[Charge],
    observed: Sequence[ObservedLimit],
    planned: Sequence[Charge],
    now: int,
) -> BurnDown:
    """Return the chart of the quota window that contains ``now``; ``planned`` are charges of planned sessions."""
    rolling = isinstance(quota, RollingQuota)
    if isinstance(quota, RollingQuota):
        window = Window(now - quota.span_seconds, now + quota.span_seconds)
        reach = quota.span_seconds
    else:
        window, reach = windows(quota, charges, now, now + 1)[0], 0
    unit: Literal["seconds", "microdollars"] = "microdollars" if isinstance(quota, MoneyQuota) else "seconds"
    limit = limit_at(quota, now, observed)
    used = partial(_used, window=window, instants=[window.start, now, window.end], reach=reach, quota=quota)
    return BurnDown(
        pool=pool,
        quota=quota.name,
        unit=unit,
        start=window.start,
        end=window.end,
        now=now,
        limit=limit,
        rolling=rolling,
        measured=tuple((at, limit - amount) for at, amount in used(charges) if at <= now),
        ahead=tuple((at, limit - amount) for at, amount in used([*charges, *planned]) if at >= now),
    )


def _used(
    charges: Sequence[Charge], window: Window, instants: Sequence[int], reach: int, quota: Quota
) -> Iterator[tuple[int, int]]:
    """Yield (instant, amount used so far) where the rate of use changes in the window, and at ``instants``.

    ``reach`` is the length of a rolling quota in seconds, else 0; use older than that does not count.
    """
    money, by_device = isinstance(quota, MoneyQuota), charges_by_device(quota)
    paces: dict[int, int] = dict.fromkeys(instants, 0)
    for charge in charges:
        weight = charge.sign * (charge.price_microdollars_per_hour if money else charge.devices if by_device else 1)
        for shift, pace in ((0, weight), (reach, -weight)) if reach else ((0, weight),):
            # Use before a window does not count. With a reach, each charge is subtracted again when it is too old.
            begin = charge.start + shift if reach else max(charge.start, window.start)
            end = min(charge.end + shift, window.end)
            if begin < end:
                paces[begin] = paces.get(begin, 0) + pace
                paces[end] = paces.get(end, 0) - pace
    used = pace = 0
    before = min(paces)
    for at in sorted(paces):
        used += pace * (at - before)
        pace += paces[at]
        before = at
        if at >= window.start:
            yield at, -(-used // 3_600) if money else used


def amount(value: float, unit: str) -> str:
    """Return an amount as text: ``12.5 h`` (from seconds) or ``$3.20`` (from micro-dollars)."""
    if unit == "microdollars":
        return f"{'-' if value < 0 else ''}${abs(value) / 1_000_000:,.2f}"
    return f"{value / 3_600:.1f} h"


def burn_down_svg(chart: BurnDown, zone: str, width: int | None = None, height: int = 150, *, axes: bool = True) -> str:
    """Return the SVG: a solid line of measured use, a dotted line of planned use, and a straight line of even use.

    Without ``axes`` it is a sparkline.
    """
    frame, span = Frame(width), chart.end - chart.start
    top, tall = (_TOP, height - _TOP - _FOOT) if axes else (3, height - 6)
    scale = 1_000_000 if chart.unit == "microdollars" else 3_600
    low = min(0.0, *(value / scale for _, value in (*chart.measured, *chart.ahead)))
    high = max(chart.limit / scale, *(value / scale for _, value in (*chart.measured, *chart.ahead)), 1e-9)

    def at(point: tuple[int, int]) -> tuple[float, float]:
        return (point[0] - chart.start) / span, (high - point[1] / scale) / (high - low)

    parts = []
    for value in ticks(low, high, 3) if axes else ():
        y = top + tall * (high - value) / (high - low)
        dollars = f"{'-' if value < 0 else ''}${abs(value):g}"
        label = dollars if chart.unit == "microdollars" else f"{value:g} h"
        parts.append(f'<line class="grid" x1="0" x2="{frame.x(1)}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{-GUTTER}" y="{y + 4:.1f}">{label}</text>')
    if not chart.rolling:
        ends = (frame.x(0), f"{top + tall * (high - chart.limit / scale) / (high - low):.1f}")
        zero = f"{top + tall * high / (high - low):.1f}"
        parts.append(f'<line class="pace" x1="{ends[0]}" y1="{ends[1]}" x2="{frame.x(1)}" y2="{zero}"/>')
    measured, ahead = (
        [at(point) for point in (each if axes else _fewer(each))] for each in (chart.measured, chart.ahead)
    )
    parts.append(curve(frame, measured, top, tall, "area") if axes else "")
    parts.append(curve(frame, measured, top, tall, "measured"))
    parts.append(curve(frame, ahead, top, tall, "ahead"))
    now, y = at((chart.now, chart.left))
    parts.append(f'<circle class="dot" cx="{frame.x(now)}" cy="{top + tall * y:.1f}" r="{3.5 if axes else 2.5}"/>')
    parts.extend(_dates(frame, chart, zone, height) if axes else ())
    more = (
        f"{amount(chart.left, chart.unit)} of {amount(chart.limit, chart.unit)} not used yet; "
        f"{amount(chart.left_at_end, chart.unit)} at the end by the plan."
    )
    return frame.document(
        parts, height, f"{chart.pool}, {chart.quota}: what is left over time", more, GUTTER if axes else 0
    )


def _fewer(points: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Return a subset of the points for a sparkline, including the last one."""
    every = -(-len(points) // _SMALL_POINTS)
    return [*points[:-1:every], points[-1]]


def _dates(frame: Frame, chart: BurnDown, zone: str, height: int) -> list[str]:
    span = chart.end - chart.start
    if span <= 2 * 86_400:
        marks = [chart.start + span * quarter // 4 for quarter in range(5)]
        form = "%H:%M"
    else:
        midnights = list(days(chart.start, chart.end, zone))
        every = max(1, -(-len(midnights) // 7))
        marks, form = midnights[::every], "%a" if span <= 8 * 86_400 else "%-d %b"
    places = [((mark - chart.start) / span, local(mark, zone, form)) for mark in marks]
    return [
        f'<text class="{style}" x="{frame.x(x)}" y="{height - 4}">{words(text)}</text>'
        for x, style, text in labels(frame, places, (0.04, 0.96))
    ]
