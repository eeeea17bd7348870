"""`schedctl top`: a live view of sessions, quotas, queue and reasons."""

from __future__ import annotations

import select
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.cli.parts.training_words import OVER
from scheduler.cli.shell.command import command
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Exit, UsageFault, code_of
from scheduler.cli.shell.output import STYLES, clean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Group
    from rich.table import Table

    from scheduler.cli.parts.screen import Section
    from scheduler.views.overview import Overview

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_HEAD_LINES = 3
_LINES_OF_ALL = 40  # of a terminal that has room for what is over
_TITLE_LINES = 3  # a blank line, the title, the names of the columns
# What may be left out when room is short comes last.
_SHARES = {
    "Needs a person": 0.25,
    "Under way": 0.2,
    "Sessions": 0.3,
    "Pools": 0.35,
    "Jobs": 1.0,
    OVER: 0.2,
}
_ROWS_MIN = 2
_KEYS = "q quit   s order"


@command(app, "schedctl top", "schedctl top --once")
def top(
    ctx: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Draw one picture and leave.")] = False,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.2, help="Seconds between looks.")] = 2.0,
    order: Annotated[str, typer.Option("--order", help="Order of the jobs: place, progress, state or name.")] = "place",
) -> None:
    """Watch what runs, what is left and what waits. Keys: q leaves, s changes the order of the jobs.

    It goes on while the daemon is down or the database does not answer, and says so.
    """
    from rich.console import Console
    from rich.live import Live

    from scheduler.cli.parts.screen import ORDERS

    cli: Cli = ctx.obj
    if cli.options.json:
        raise UsageFault("top draws for people", "it has no JSON", "Use: schedctl status --json")
    if order not in ORDERS:
        raise UsageFault(f"no order is named {order}", "there is no such order", f"Use one of {', '.join(ORDERS)}")
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageFault("top needs a terminal", "this is a pipe or a file", "Use: schedctl top --once")
    picture = _Picture(cli, order)
    console = Console(no_color=not cli.colour, highlight=False, width=shutil.get_terminal_size().columns)
    if once:
        console.print(picture.draw())
        return
    with _keys(), Live(picture.draw(), console=Console(no_color=not cli.colour, highlight=False), screen=True) as live:
        while True:
            key = _key(every)
            if key in {"q", "Q", "\x1b", "\x03"}:
                return
            if key in {"s", "S"}:
                picture.order = ORDERS[(ORDERS.index(picture.order) + 1) % len(ORDERS)]
            live.update(picture.draw(), refresh=True)


@dataclass
class _Picture:
    """What is drawn; the newest state that could be read stays while the database does not answer."""

    cli: Cli
    order: str
    found: Overview | None = None
    trouble: str = ""

    def draw(self) -> Group:
        """Look again and return the picture, no larger than the terminal."""
        from rich.console import Group
        from rich.text import Text

        from scheduler.cli.parts.screen import headline, look, sections, verdict_line

        try:
            self.found, self.trouble = look(self.cli), ""
        except Exception as error:
            if code_of(error) is Exit.BUG or self.found is None:
                raise
            self.trouble = f"Nothing new since: {error}"
        lines = shutil.get_terminal_size().lines
        out = self.cli.out
        parts: list[Text | Table] = []
        known = self.trouble or self.found.daemon.problem
        told = self.trouble or headline(self.found, out)
        parts.append(Text(clean(told), style="red" if known else "", no_wrap=True, overflow="ellipsis"))
        parts.append(Text(clean(verdict_line(self.found, out)), style="bold", no_wrap=True, overflow="ellipsis"))
        parts.append(Text(f"{out.instant(self.found.at)}   {_KEYS}: {self.order}", style="dim", no_wrap=True))
        room = lines - _HEAD_LINES - 1
        left = [one for one in sections(self.found, out, self.order) if one.title != OVER or lines >= _LINES_OF_ALL]
        while left and room >= _TITLE_LINES + 1:
            section = left.pop(0)
            reserved = (_TITLE_LINES + _ROWS_MIN) * len(left)
            most = max(_ROWS_MIN, min(room - _TITLE_LINES - reserved, round(lines * _SHARES[section.title])))
            table, used = _table(section, min(most, room - _TITLE_LINES))
            parts += [Text(), Text(section.title, style="bold"), table]
            room -= _TITLE_LINES - 1 + used
        return Group(*parts)


def _table(section: Section, most: int) -> tuple[Table, int]:
    """Return a section as a table of one line a row, and how many lines it takes, its head included."""
    from rich.table import Table
    from rich.text import Text

    from scheduler.cli.parts.screen import cut

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, expand=True, header_style="dim")
    for column in section.columns:
        wide = column.startswith("~")
        table.add_column(
            column.lstrip(">~"),
            justify="right" if column.startswith(">") else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if wide else None,
            max_width=None if wide else 30,
        )
    rows, hidden = cut(section, most)
    for row in rows:
        table.add_row(*(Text(clean(cell), style=STYLES.get(cell, ""), no_wrap=True) for cell in row))
    if hidden:
        table.add_row("", f"and {hidden} more", style="dim")
    return table, len(rows) + bool(hidden) + 1


@contextmanager
def _keys() -> Iterator[None]:
    """Have keys at once and unseen, and the terminal as it was afterwards."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _key(seconds: float) -> str:
    """Return the key pressed within so many seconds, else nothing."""
    import os

    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if ready else ""
