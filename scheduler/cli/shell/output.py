"""Output: data on standard output, as JSON or for people; talk on standard error.

People get rich tables on a terminal and plain aligned text otherwise. Names and messages come from platforms, training
scripts and files, so whatever could steer a terminal is taken out of them.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from jobs.payload.redact import Redactor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jobs.payload.redact import Redact

# Colours and cursor movements (ESC [ ... letter), and titles and links (ESC ] ... BEL or ESC \\).
_TERMINAL_COMMAND = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)"

_WRAPPED_COLUMNS = 16  # text that may be wrapped gets at least so much room
_GAP_COLUMNS = 2

STYLES = {
    "active": "green",
    "running": "green",
    "open": "green",
    "ok": "green",
    "good": "green",
    "finished": "green",
    "done": "bold",
    "held": "yellow",
    "closed": "yellow",
    "warning": "yellow",
    "stopping": "yellow",
    "preempted": "yellow",
    "failed": "red",
    "bad": "red",
    "lost": "red",
    "quarantined": "red",
}


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command writes. ``zone`` is the one in which people read times; ``redact`` sees all that is written."""

    as_json: bool
    colour: bool
    zone: str = "UTC"
    redact: Redact = field(default_factory=Redactor)

    def data(self, document: dict[str, Any]) -> None:
        """Write one JSON document: a single line, or indented for the eyes of a person."""
        indent = 2 if sys.stdout.isatty() else None
        sys.stdout.write(self.redact(json.dumps(document, indent=indent)) + "\n")

    def line(self, text: str = "") -> None:
        """Write one line of data for people."""
        sys.stdout.write(self.redact(clean(text)) + "\n")

    def say(self, text: str) -> None:
        """Tell the user something that is no data; a program that asked for JSON is not talked to."""
        if not self.as_json:
            sys.stderr.write(self.redact(clean(text)) + "\n")

    def warn(self, text: str) -> None:
        """Tell user and program alike what they should know."""
        sys.stderr.write(f"schedctl: warning: {self.redact(clean(text))}\n")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Write a table. ``>`` before a title puts numbers to the right, ``~`` marks text that may be wrapped."""
        cells = [[self.redact(clean(cell)) for cell in row] for row in rows]
        if sys.stdout.isatty():
            self._rich_table(columns, cells)
        else:
            sys.stdout.writelines(_aligned(columns, cells))

    def facts(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Write names and values, one pair a line; empty values are left out."""
        shown = [(name, self.redact(clean(value))) for name, value in pairs if value]
        width = max((len(name) for name, _ in shown), default=0)
        sys.stdout.writelines(f"{name:<{width}}  {value}\n" for name, value in shown)

    def instant(self, at: int | None) -> str:
        """Return an instant in the user's zone: ``Sat 2026-11-21 14:05 CET``; nothing for None."""
        if at is None:
            return ""
        from zoneinfo import ZoneInfo

        return datetime.fromtimestamp(at, UTC).astimezone(ZoneInfo(self.zone)).strftime("%a %Y-%m-%d %H:%M %Z")

    def _rich_table(self, columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
        import shutil

        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, _GAP_COLUMNS, 0, 0))
        needed = 0
        for index, title in enumerate(columns):
            wraps = title.startswith("~")
            natural = max(_width(cell) for cell in (title.lstrip(">~"), *(row[index] for row in cells)))
            needed += (min(natural, _WRAPPED_COLUMNS) if wraps else natural) + _GAP_COLUMNS
            justify: Literal["left", "right"] = "right" if title.startswith(">") else "left"
            table.add_column(title.lstrip(">~"), justify=justify, no_wrap=not wraps, overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
        # On a terminal that is too narrow for the table the lines run over: that is ugly, but nothing is cut off.
        width = max(shutil.get_terminal_size().columns, needed)
        Console(no_color=not self.colour, highlight=False, width=width).print(table)


def clean(text: str) -> str:
    """Return text without terminal commands and unprintable characters; line breaks become spaces."""
    if text.isprintable():
        return text
    if "\x1b" in text:
        import re

        text = re.sub(_TERMINAL_COMMAND, "", text)
    return "".join(c for c in (" " if c in "\t\n\r\v\f\x85\u2028\u2029" else c for c in text) if c.isprintable())


def wants_colour() -> bool:
    """Return whether the environment allows colours (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def hours(seconds: int) -> str:
    """Return seconds as hours and minutes: ``12h 05m``; ``-`` leads a negative amount."""
    sign, minutes = "-" if seconds < 0 else "", round(abs(seconds) / 60)
    return f"{sign}{minutes // 60}h {minutes % 60:02d}m"


def size(count: int) -> str:
    """Return bytes as people read them: ``1.5 MiB``."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1_024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1_024
    return f"{amount:.1f} TiB"


def _aligned(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterable[str]:
    titles = [title.lstrip(">~").upper() for title in columns]
    right = [title.startswith(">") for title in columns]
    lines = [titles, *cells]
    widths = [max(_width(line[index]) for line in lines) for index in range(len(titles))]
    for line in lines:
        padded = [
            " " * (width - _width(cell)) + cell if at_right else cell + " " * (width - _width(cell))
            for cell, width, at_right in zip(line, widths, right, strict=True)
        ]
        yield "  ".join(padded).rstrip() + "\n"


def _width(text: str) -> int:
    """Return how many columns a text takes; ideographs take two, combining marks none."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def share(part: int, whole: int) -> str:
    """Return a percentage, ``33 %``."""
    return f"{100 * part / whole:.0f} %" if whole > 0 else ""


def amount(value: int, unit: str) -> str:
    """Return an amount of a quota: hours, or dollars when its ``unit`` is microdollars."""
    return f"${value / 1_000_000:.2f}" if unit == "microdollars" else hours(value)
