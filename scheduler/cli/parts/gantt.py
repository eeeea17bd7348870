"""A plan as a picture in text: one line for each session that a pool runs at once, with the days above."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from scheduler.cli.shell.output import hours
from scheduler.core.plan import Placement

_LETTERS_MIN = 2  # of a name that is cut


def gantt(placements: Sequence[Placement], start: int, columns: int, zone: str = "UTC") -> list[str]:
    """Return the picture from ``start`` on, days as ``zone`` has them; names are cut to fit their bar."""
    end = max(found.end for found in placements)
    per_column = max(1, -(-(end - start) // columns))
    rows = _rows(placements)
    width = max(len(pool) for pool, _ in rows)
    lines = [f"{'':<{width}} {_days(start, end, per_column, zone)}".rstrip()]
    lines += [f"{pool:<{width}} {_bars(row, start, per_column)}" for pool, row in rows]
    lines.append(f"{'':<{width}} one column is {hours(per_column)}")
    return lines


def _rows(placements: Sequence[Placement]) -> list[tuple[str, list[Placement]]]:
    rows: list[tuple[str, list[Placement]]] = []
    for found in sorted(placements, key=lambda found: (found.pool, found.start)):
        row = next((row for pool, row in rows if pool == found.pool and row[-1].end <= found.start), None)
        if row is None:
            rows.append((found.pool, [found]))
        else:
            row.append(found)
    return rows


def _bars(row: Sequence[Placement], start: int, per_column: int) -> str:
    bar = ""
    for found in row:
        begin = max(len(bar), (found.start - start) // per_column)
        length = max(1, (found.end - start) // per_column - begin)
        label = _label([planned_lane.job for planned_lane in found.lanes], length - 2)
        bar = bar.ljust(begin) + (f"[{label.ljust(length - 2, '=')}]" if length > 1 else "|")
    return bar


def _label(names: Sequence[str], columns: int) -> str:
    """Return the names side by side, each cut to its share of the columns, or nothing when that says too little."""
    whole = "+".join(names)
    if len(whole) <= columns:
        return whole
    share = (columns - len(names) + 1) // len(names)
    return "+".join(name[:share] for name in names) if share >= _LETTERS_MIN else ""


def _days(start: int, end: int, per_column: int, zone: str) -> str:
    """Return the line above: each day's name where its midnight is, as far as they fit side by side."""
    place = ZoneInfo(zone)
    day = datetime.fromtimestamp(start, UTC).astimezone(place).date()
    line = ""
    while True:
        day += timedelta(days=1)
        midnight = int(datetime.combine(day, time(), place).timestamp())
        if midnight >= end:
            return line
        column = (midnight - start) // per_column
        if column >= len(line) + bool(line):
            line = f"{line.ljust(column)}'{day:%a %d}"
