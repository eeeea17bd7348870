"""Parts of all charts: colours, scales, time axes, and escaped text for SVG. Pure.

A chart fills the width of its container. Horizontal positions are per cent and vertical positions are pixels, so text
has the same size on a phone and on a wide screen. With a ``width`` in pixels a chart is a stand-alone picture that
includes its style. Colours are CSS classes of :data:`STYLE`, which is also part of the page's style sheet.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr
from zoneinfo import ZoneInfo

STYLE = Path(__file__).with_name("chart.css").read_text(encoding="utf-8")

HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#8c564b", "#7f6bd0")
"""The colours of models, which people with colour blindness can distinguish. A name always stands beside a colour."""

STYLE += "".join(
    f".chart .h{number} {{ fill: {hue}; }} .h{number}::before {{ background: {hue}; }} "
    f".spark.h{number} .measured {{ stroke: {hue}; }} "
    f".chart .line.h{number} {{ fill: none; stroke: {hue}; stroke-width: 2; }}\n"
    for number, hue in enumerate(HUES)
)


def hues_of(names: Iterable[str]) -> dict[str, int]:
    """Return the index in :data:`HUES` of each model's colour; ``names`` are in order of age."""
    return {name: number % len(HUES) for number, name in enumerate(names)}


GUTTER = 44
"""Pixels left of a chart with an axis, for the labels of the axis. The style sheet has the same number."""

_LETTER, _APART = 7.5, 4  # pixels of a character, and between labels
_BEFORE = {"": 0.0, "middle": 0.5, "end": 1.0}  # share of a label that is left of its position
# Pixels of the narrowest chart with an axis: on a phone, and on a screen of 900 pixels, which shows "roomy" labels.
_LEAST, _LEAST_WIDE = 270, 370


@dataclass(frozen=True, slots=True)
class Frame:
    """Converts horizontal positions in a chart to per cent of its container, or to pixels if it has a ``width``."""

    width: int | None = None

    def x(self, fraction: float) -> str:
        """Return the position of ``fraction`` (0 is left, 1 is right), clamped to the chart."""
        inside = min(1.0, max(0.0, fraction))
        return f"{100 * inside:.5g}%" if self.width is None else f"{inside * self.width:.2f}"

    def length(self, fraction: float) -> str:
        """Return a length in the unit of ``x``, at least so long that it is visible."""
        inside = min(1.0, max(0.0015, fraction))
        return f"{100 * inside:.4g}%" if self.width is None else f"{inside * self.width:.2f}"

    def document(
        self, parts: Sequence[str], height: float, title: str, more: str = "", gutter: int = 0, role: str = "img"
    ) -> str:
        """Return the complete SVG. ``title`` is its accessible name, ``more`` its description.

        ``gutter`` is the number of free pixels left of the chart, for labels at negative positions. A picture with
        links needs the ``role`` "group": screen readers skip the parts of an image.
        """
        if self.width is None:
            size, own = f'height="{height:g}"', ""
        else:
            whole = self.width + gutter
            size = f'viewBox="{-gutter} 0 {whole} {height:g}" width="{whole}" height="{height:g}"'
            ground = "svg { color-scheme: light dark; background: Canvas; }"
            own = f"<style>{ground}{STYLE.replace(':root', 'svg')}</style>"
        kind = "chart axis" if gutter and self.width is None else "chart"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="{kind}" role="{role}" {size} '
            f"aria-label={attribute(title)}>"
            f"{own}<desc>{words(more)}</desc>{''.join(parts)}</svg>"
        )


def words(text: str) -> str:
    """Return text for the content of an element: escaped, without control characters."""
    return escape(printable(text))


def attribute(text: str) -> str:
    """Return text as a quoted attribute value."""
    return quoteattr(printable(text))


def curve(frame: Frame, points: Sequence[tuple[float, float]], top: float, height: float, kind: str) -> str:
    """Return a line through points, which are fractions with (0, 0) at the top left; ``kind`` is its CSS class.

    The kind ``area`` is filled down to the bottom.
    """
    across, down = (1_000, 1_000) if frame.width is None else (frame.width, height)
    drawn = [(across * min(1.0, max(0.0, x)), down * min(1.0, max(0.0, y))) for x, y in points]
    if kind == "area" and drawn:
        drawn = [(drawn[0][0], down), *drawn, (drawn[-1][0], down)]
    shape = "polygon" if kind == "area" else "polyline"
    if frame.width is not None:
        place = " ".join(f"{x:.1f},{top + y:.1f}" for x, y in drawn)
        return f'<{shape} class="{kind}" points="{place}"/>'
    # The browser stretches the shape to any width, but not its stroke.
    place = " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)
    return (
        f'<svg x="0" y="{top:g}" width="{frame.x(1)}" height="{height:g}" viewBox="0 0 1000 1000" '
        f'preserveAspectRatio="none" overflow="visible"><{shape} class="{kind}" '
        f'points="{place}" vector-effect="non-scaling-stroke"/></svg>'
    )


def labels(
    frame: Frame, marks: Sequence[tuple[float, str]], edges: tuple[float, float]
) -> Iterator[tuple[float, str, str]]:
    """Yield position, CSS class and text of the labels that fit; ``marks`` are (fraction, text) in ascending order.

    A label is centred at its position; left of the first of ``edges`` it starts there, right of the second it ends.
    Every n-th label is kept, with the smallest n without overlaps. Narrow screens hide labels of the class "roomy".
    """
    anchors = ["" if at < edges[0] else "end" if at > edges[1] else "middle" for at, _ in marks]

    def crowded(width: int, every: int) -> bool:
        before = -math.inf
        for (at, text), anchor in zip(marks[::every], anchors[::every], strict=True):
            long = len(text) * _LETTER
            left = at * width - long * _BEFORE[anchor]
            if left < before:
                return True
            before = left + long + _APART
        return False

    least, narrow = (frame.width, frame.width) if frame.width is not None else (_LEAST_WIDE, _LEAST)
    wide = next(every for every in range(1, len(marks) + 1) if not crowded(least, every)) if marks else 1
    always = next(every for every in range(wide, len(marks) + wide + 1, wide) if not crowded(narrow, every))
    for index, ((at, text), anchor) in enumerate(zip(marks, anchors, strict=True)):
        if index % wide == 0:
            yield at, anchor if index % always == 0 else f"{anchor} roomy".strip(), text


def ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Return round values within [low, high], at most ``most + 1``."""
    span = high - low
    if not math.isfinite(span) or span <= 0:
        return [low]
    rough = span / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def days(start: int, end: int, zone: str) -> Iterator[int]:
    """Yield the local midnights of ``zone`` inside [start, end); days have 23 to 25 hours."""
    where = ZoneInfo(zone)
    day = datetime.fromtimestamp(start, UTC).astimezone(where).date()
    while True:
        at = int(datetime(day.year, day.month, day.day, tzinfo=where).timestamp())
        if at >= end:
            return
        if at >= start:
            yield at
        day += timedelta(days=1)


def hours(start: int, end: int, zone: str, every: int) -> Iterator[int]:
    """Yield the instants inside [start, end) at which the clocks of ``zone`` show a multiple of ``every`` hours."""
    where = ZoneInfo(zone)
    for at in range(-(-start // 900) * 900, end, 900):  # zones differ from UTC by whole quarters of an hour
        moment = datetime.fromtimestamp(at, UTC).astimezone(where)
        if moment.minute == 0 and moment.hour % every == 0:
            yield at


def local(at: int, zone: str, form: str) -> str:
    """Return an instant in ``zone`` in the strftime format ``form``."""
    return datetime.fromtimestamp(at, UTC).astimezone(ZoneInfo(zone)).strftime(form)


def short(number: float) -> str:
    """Return a count in few characters: ``950``, ``1.5k``, ``12k``, ``3M``."""
    for size, letter in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if abs(number) >= size:
            return f"{number / size:.1f}".removesuffix(".0") + letter
    return f"{number:g}"


def printable(text: str) -> str:
    """Return text with a space for each control character."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
