"""Output of commands: data on standard output, as JSON or text; messages and warnings on standard error.

Tables are wrapped and coloured on a terminal, and plain aligned text otherwise. Names and messages come from platforms,
training scripts and files, so terminal escape sequences are removed from them.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar

from jobs.payload.redact import Redactor
from scheduler.cli.shell.table import column_of, drawn

# Colours and cursor movements (ESC [ ... final character), and titles and links (ESC ] ... BEL or ESC \\).
_TERMINAL_COMMAND = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)"

T = TypeVar("T")  # a thing that a table has a row for
_PIPE_COLUMNS = 160  # width of a pipe or file, unless the variable COLUMNS is set

_WORDS = {
    "green": "active running open ok good finished",
    "bold": "done",
    "yellow": "held paused closed warning stopping preempted",
    "red": "failed bad lost quarantined",
}
STYLES = {word: style for style, words in _WORDS.items() for word in words.split()}
_OLD_TITLES = {"weight": "priority", "whom": "subject", "held": "reserved", "key": "run", "done by": "eta"}
"""Current titles of renamed columns, by old title; ``--columns`` accepts both."""
_CODES = {"green": 32, "yellow": 33, "red": 31, "bold": 1}


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a command. ``zone`` is the time zone of displayed times; ``redact`` hides secrets in all output.

    A command writes its result twice, as data and as lines and tables; ``as_json`` selects which of them is printed.
    A table shows all its columns if ``wide`` is set, and only the columns in ``only`` unless that is empty.
    """

    as_json: bool
    colour: bool
    zone: str = "UTC"
    redact: Redactor = field(default_factory=Redactor)
    wide: bool = False
    only: tuple[str, ...] = ()

    def data(self, document: dict[str, Any]) -> None:
        """Write one JSON document if ``as_json``: on a single line, or indented on a terminal."""
        if self.as_json:
            indent = 2 if sys.stdout.isatty() else None
            sys.stdout.write(self.redact(json.dumps(document, indent=indent)) + "\n")

    def line(self, text: str = "") -> None:
        """Write one line of text to standard output, unless ``as_json``."""
        if not self.as_json:
            sys.stdout.write(self.redact(clean(text)) + "\n")

    def say(self, text: str) -> None:
        """Write a message to standard error, unless ``as_json``."""
        if not self.as_json:
            sys.stderr.write(self.redact(clean(text)) + "\n")

    def warn(self, text: str, *, in_data: bool = False) -> None:
        """Write a warning to standard error, unless ``as_json`` and the JSON document has the warning (``in_data``)."""
        if in_data and self.as_json:
            return
        sys.stderr.write(f"schedctl: warning: {self.redact(clean(text))}\n")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], *, below: bool = False) -> None:
        """Write a table; ``columns`` are titles with the marks of scheduler.cli.shell.table. Raises UsageFault.

        Long text is wrapped on a terminal. A pipe or file gets one line per row, with long text cut off. A table
        ``below`` other output begins with an empty line, and is left out if it has no rows.
        """
        rows = list(rows)
        if self.as_json or (below and not rows):
            return
        if below:
            self.line()
        kinds = [column_of(title) for title in columns]
        texts = [[clean(cell) for cell in row] for row in rows]
        redacted = iter(self.redact.each(cell for row in texts for cell in row))
        cells = [list(islice(redacted, len(row))) for row in texts]
        if self.only:
            chosen = self._chosen([column.title for column in kinds])
            kinds = [replace(kinds[at], goes=0, below=False) for at in chosen]
            cells = [[row[at] for at in chosen] for row in cells]
        terminal = sys.stdout.isatty()
        if not terminal:
            kinds = [replace(column, title=column.title.upper()) for column in kinds]
        width = None if self.wide else self.columns
        paint = painted if terminal and self.colour else plain
        lines = drawn(kinds, cells, width, one_line=not terminal, paint=paint)
        sys.stdout.writelines(f"{line}\n" for line in lines)

    def listing(
        self, things: Iterable[T], columns: Mapping[str, Callable[[T], str]], *, none: str = "", below: bool = False
    ) -> None:
        """Write a table with one row per thing. ``columns`` maps a title with marks to the function for its cells.

        ``none`` is the message if there are no things; ``below`` is as in :meth:`table`.
        """
        rows = [[read(one) for read in columns.values()] for one in things]
        self.table(tuple(columns), rows, below=below)
        if none and not rows:
            self.say(none)

    def _chosen(self, titles: Sequence[str]) -> list[int]:
        """Return the positions of the columns in ``only``, in that order. Raises UsageFault for an unknown title."""
        wanted = [name if name in titles else _OLD_TITLES.get(name, name) for name in self.only]
        unknown = [name for name in wanted if name not in titles]
        if unknown:
            from scheduler.cli.shell.exits import UsageFault

            raise UsageFault(f"--columns {unknown[0]}", "there is no such column", f"Use: {', '.join(titles)}")
        return [titles.index(name) for name in wanted]

    @property
    def columns(self) -> int:
        """The width of a line of the terminal, pipe or file in characters."""
        import shutil

        return shutil.get_terminal_size((_PIPE_COLUMNS, 0)).columns

    def facts(self, *pairs: tuple[str, str]) -> None:
        """Write names and values, one pair per line; pairs with an empty value are left out."""
        if self.as_json:
            return
        rows = [(name, self.redact(clean(value))) for name, value in pairs if value]
        width = max((len(name) for name, _ in rows), default=0)
        sys.stdout.writelines(f"{name:<{width}}  {value}\n" for name, value in rows)

    def instant(self, at: int | None) -> str:
        """Return a time in ``zone``, such as ``Sat 2026-11-21 14:05 CET``; empty for None."""
        return self._local(at, "%a %Y-%m-%d %H:%M %Z")

    def moment(self, at: int | None) -> str:
        """Return a time for a table cell, such as ``Sat 21 Nov 14:05``; as ``instant`` if ``wide``; empty for None."""
        return self.instant(at) if self.wide else self._local(at, "%a %d %b %H:%M")

    def _local(self, at: int | None, form: str) -> str:
        if at is None:
            return ""
        from zoneinfo import ZoneInfo

        return datetime.fromtimestamp(at, UTC).astimezone(ZoneInfo(self.zone)).strftime(form)


def plain(text: str, cell: str) -> str:
    """Return the text without colours."""
    del cell
    return text


def painted(text: str, cell: str) -> str:
    """Return the text in the colour that ``STYLES`` has for its ``cell``, if any."""
    style = STYLES.get(cell)
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style else text


def clean(text: str) -> str:
    """Return text without escape sequences and unprintable characters; tabs and line breaks become spaces."""
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


def figure(value: float | None, form: str = ".4g") -> str:
    """Return a number in the format ``form``; empty for None."""
    return "" if value is None else format(value, form)


def share(part: int, whole: int) -> str:
    """Return a percentage, such as ``33 %``; at most 99 % until all is done, and empty if ``whole`` is not positive."""
    if whole <= 0:
        return ""
    percent = 100 * part / whole
    return f"{min(percent, 99) if part < whole else percent:.0f} %"


def amount(value: int, unit: str) -> str:
    """Return an amount of a quota as text: dollars if ``unit`` is ``microdollars``, otherwise seconds as hours."""
    return f"${value / 1_000_000:.2f}" if unit == "microdollars" else hours(value)
