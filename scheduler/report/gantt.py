"""A picture of the week: sessions over time, one row per seat, as a self-contained SVG. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape
from zoneinfo import ZoneInfo

from scheduler.core.run import Ended, Outcome, Run
from scheduler.core.window import DAY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scheduler.core.pool import Pool
    from scheduler.report.week import Week

_WIDTH = 1_200
_LEFT = 130
_ROW = 26
_TOP = 46
# Colour-blind safe (Okabe and Ito); further jobs get a hue from their name.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#555555")


@dataclass(frozen=True, slots=True)
class _Bar:
    row: int
    start: int
    end: int
    job: str
    title: str
    lost: bool


def week_svg(week: Week, pools: Mapping[str, Pool], zone: str = "UTC") -> str:
    """Return the week as SVG text; instants on the axis are days of ``zone``."""
    rows, bars = _lay_out(week.runs, pools, week.end)
    colours = _colours([job.name for job in week.jobs])
    height = _TOP + _ROW * len(rows) + 54
    span = week.end - week.start

    def x(instant: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - 10) * min(1.0, max(0.0, (instant - week.start) / span))

    parts = [
        f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"
 font-family="system-ui, sans-serif" font-size="12" role="img">""",
        f"<title>Sessions of the week, goodput {week.goodput:.1%}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for instant, label in _days(week.start, week.end, zone):
        parts.append(
            f'<line x1="{x(instant):.1f}" y1="{_TOP - 8}" x2="{x(instant):.1f}" y2="{_TOP + _ROW * len(rows)}" '
            'stroke="#dddddd"/>'
        )
        parts.append(f'<text x="{x(instant) + 3:.1f}" y="{_TOP - 12}" fill="#444444">{escape(label)}</text>')
    for index, name in enumerate(rows):
        y = _TOP + _ROW * index
        parts.append(f'<text x="8" y="{y + 17}" fill="#222222">{escape(name)}</text>')
        parts.append(f'<line x1="{_LEFT}" y1="{y}" x2="{_WIDTH - 10}" y2="{y}" stroke="#eeeeee"/>')
    for bar in bars:
        left, right = x(bar.start), x(bar.end)
        dash = ' stroke="#c00000" stroke-width="2" stroke-dasharray="3 2"' if bar.lost else ""
        parts.append(
            f'<rect x="{left:.1f}" y="{_TOP + _ROW * bar.row + 3}" width="{max(1.0, right - left):.1f}" '
            f'height="{_ROW - 6}" rx="3" fill="{colours[bar.job]}"{dash}><title>{escape(bar.title)}</title></rect>'
        )
        if right - left > 8 * len(bar.job):
            parts.append(
                f'<text x="{left + 4:.1f}" y="{_TOP + _ROW * bar.row + 17}" fill="#ffffff">{escape(bar.job)}</text>'
            )
    parts.extend(_legend(colours, _TOP + _ROW * len(rows) + 30))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _lay_out(runs: Sequence[Run], pools: Mapping[str, Pool], until: int) -> tuple[list[str], list[_Bar]]:
    """Give every pool ``sessions_max`` times ``devices_per_session`` rows and every lane the rows of its devices."""
    rows: list[str] = []
    bars: list[_Bar] = []
    for name, pool in pools.items():
        first = len(rows)
        for session in range(pool.sessions_max):
            for device in range(pool.devices_per_session):
                suffix = f" {session + 1}" if pool.sessions_max > 1 else ""
                suffix += f".{device + 1}" if pool.devices_per_session > 1 else ""
                rows.append(name + suffix)
        free_from = [0] * pool.sessions_max
        for run in sorted((run for run in runs if run.pool == name), key=lambda run: run.planned_start):
            started, ended = _metered(run, until)
            if started is None:
                continue
            slot = min(range(pool.sessions_max), key=lambda index: (free_from[index] > started, free_from[index]))
            free_from[slot] = ended
            bars.extend(
                _Bar(
                    row=first + slot * pool.devices_per_session + device,
                    start=started,
                    end=ended,
                    job=lane.job,
                    title=f"{run.key}: {lane.job}, {(ended - started) / 3600:.1f} h, {lane.outcome or 'live'}",
                    lost=lane.outcome in {Outcome.LOST, Outcome.FAILED},
                )
                for lane in run.lanes
                for device in lane.devices
            )
    return rows, bars


def _metered(run: Run, until: int) -> tuple[int | None, int]:
    match run.state:
        case Ended(started=started, at=at):
            return started, at
        case _:
            return run.planned_start, min(run.deadline, until)


def _days(start: int, end: int, zone: str) -> Iterable[tuple[int, str]]:
    where = ZoneInfo(zone)
    instant = start
    while instant < end:
        yield instant, datetime.fromtimestamp(instant, UTC).astimezone(where).strftime("%a %d %b")
        instant += DAY


def _colours(jobs: Sequence[str]) -> dict[str, str]:
    colours = dict(zip(jobs, _COLOURS, strict=False))
    for job in jobs[len(_COLOURS) :]:
        hue = hashlib.sha256(job.encode()).digest()[0] * 360 // 256
        colours[job] = f"hsl({hue}, 55%, 42%)"
    return colours


def _legend(colours: Mapping[str, str], y: int) -> Iterable[str]:
    x = _LEFT
    for job, colour in colours.items():
        yield f'<rect x="{x}" y="{y - 10}" width="12" height="12" rx="2" fill="{colour}"/>'
        yield f'<text x="{x + 17}" y="{y}" fill="#222222">{escape(job)}</text>'
        x += 34 + 7 * len(job)
