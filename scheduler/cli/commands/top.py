"""`schedctl top`: a live view of sessions, quotas, queue and reasons."""

from __future__ import annotations

import select
import shutil
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.cli.parts import OVER
from scheduler.cli.shell.command import alone
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Exit, UsageFault, code_of
from scheduler.cli.shell.output import clean, painted, plain
from scheduler.cli.shell.table import column_of, drawn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Group
    from rich.text import Text

    from scheduler.cli.parts.screen import ScreenTable
    from scheduler.views.overview import Overview


_JOBS, _SESSIONS = "Jobs", "Sessions"
_HEAD_LINES = 3
_LINES_OF_ALL = 40  # of a terminal that has room for what is over
_LINES_OF_FEW = 30  # of a terminal where every line counts: no blank ones, and sessions stand with their jobs
_TITLE_LINES, _TITLE_LINES_OF_FEW = 3, 2  # a blank line, the title, the names of the columns
# What may be left out when room is short comes last.
_SHARES = {"Actions required": 0.25, _JOBS: 0.5, _SESSIONS: 0.3, "Pools": 0.35, "Under way": 0.2, OVER: 0.2}
_ROWS_MIN = 2
_JOBS_MIN = 8  # where sessions are not shown
_KEYS = "q quit   ? keys   e explain   l log   s order"
_SEQUENCES = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\x1b": "esc"}


@alone("schedctl top", "schedctl top --once")
def top(
    cli: Cli,
    once: Annotated[bool, typer.Option("--once", help="Draw one picture and leave.")] = False,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.2, help="Seconds between looks.")] = 2.0,
    order: Annotated[
        str, typer.Option("--order", help="Order of the jobs: place (queue position), progress, state or name.")
    ] = "place",
) -> None:
    """Watch what runs, what is left and what waits. Keys: ? shows them all, q leaves.

    It goes on while the daemon is down or the database does not answer, and says so.
    """
    from rich.console import Console
    from rich.live import Live

    from scheduler.cli.parts.screen import ORDERS

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
        while not picture.view.over:
            if key := _key(every):
                picture.view.press(key, picture.job_names)
            live.update(picture.draw(fresh=not key), refresh=True)


class _Picture:
    """What is drawn; the newest state that could be read stays while the database does not answer."""

    def __init__(self, cli: Cli, order: str) -> None:
        from scheduler.cli.parts.top_view import View

        self.view = View(cli, order)
        self.job_names: list[str] = []
        self._cli = cli
        self._overview: Overview | None = None
        self._trouble = ""

    def draw(self, *, fresh: bool = True) -> Group:
        """Return the picture, no larger than the terminal; ``fresh`` looks again, as what a key changed does."""
        from rich.console import Group
        from rich.text import Text

        from scheduler.cli.parts.screen import headline, verdict_line

        overview = self._look() if fresh or self._overview is None or self.view.message else self._overview
        lines, out, view = shutil.get_terminal_size().lines, self._cli.out, self.view
        head = self._trouble or headline(overview, out)
        filter_note = f"   jobs: {view.filter}" if view.filter != "all" else ""
        named = f"   names with {view.name}" if view.name else ""
        foot = f"{out.moment(overview.at)}   {_KEYS}: {view.order}"
        parts = [
            _line(head, "red" if self._trouble or overview.daemon.problem else ""),
            _line(verdict_line(overview, out), "bold"),
            _line(view.question(), "reverse") if view.question() else _line(f"{foot}{filter_note}{named}", "dim"),
        ]
        room = lines - _HEAD_LINES - 1
        if view.page == "main":
            parts += self._tables(overview, room, lines)
        else:
            title = view.chosen if view.page != "help" else "Keys"
            parts += [Text(), _line(title, "bold"), *map(_line, view.lines(overview, out.zone)[-(room - 2) :])]
        return Group(*parts)

    def _look(self) -> Overview:
        """Look again; what was seen before stays when that cannot be."""
        from scheduler.cli.parts.screen import look

        try:
            self._overview, self._trouble = look(self._cli), ""
        except Exception as error:
            if code_of(error) is Exit.BUG or self._overview is None:
                raise
            self._trouble = f"Nothing new since: {error}"
        return self._overview

    def _tables(self, overview: Overview, room: int, lines: int) -> list[Text]:
        """Return the sections as far as there is room, and remember which jobs they show."""
        from rich.text import Text

        from scheduler.cli.parts.screen import sections

        view, parts = self.view, list[Text]()
        every = sections(overview, self._cli.out, view.order, view.keeps)
        few = lines < _LINES_OF_FEW
        unseen = {_SESSIONS} if few else set()
        unseen |= {OVER} if lines < _LINES_OF_ALL else set()
        left = [one for one in every if one.title not in unseen]
        titles = _TITLE_LINES_OF_FEW if few else _TITLE_LINES
        self.job_names = [row[1] for one in every if one.title == _JOBS for row in one.rows]
        while left and room >= titles + 1:
            section = left.pop(0)
            needed = [min(len(one.rows), _JOBS_MIN if few and one.title == _JOBS else _ROWS_MIN) for one in left]
            reserved = titles * len(left) + sum(needed)
            most = max(_ROWS_MIN, min(room - titles - reserved, round(lines * _SHARES[section.title])))
            drawn_ = _table(section, min(most, room - titles), view.chosen, colour=self._cli.colour)
            parts += [*([] if few else [Text()]), _line(section.title, "bold"), *drawn_]
            room -= titles - 1 + len(drawn_)
        return parts


def _line(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(clean(text), style=style, no_wrap=True, overflow="ellipsis")


def _table(section: ScreenTable, most: int, chosen: str, *, colour: bool) -> list[Text]:
    """Return a section as lines of at most the terminal's width, its titles first; the ``chosen`` job is among them."""
    from rich.text import Text

    columns = [column_of(title) for title in section.columns]
    kept = [at for at, column in enumerate(columns) if not column.below]  # explain tells the command
    names = [row[1] for row in section.rows] if section.title == _JOBS else []
    first = max(0, names.index(chosen) - (most - 2)) if chosen in names and len(names) > most else 0
    rows = section.rows if len(section.rows) <= most else section.rows[first : first + max(0, most - 1)]
    hidden = len(section.rows) - len(rows)
    cells = [[clean(row[at]) for at in kept] for row in rows]
    width = shutil.get_terminal_size().columns
    broken_lines = drawn([columns[at] for at in kept], cells, width, one_line=True, paint=painted if colour else plain)
    lines = [Text.from_ansi(line, no_wrap=True, overflow="ellipsis") for line in broken_lines]
    lines[0].stylize("dim")
    if chosen in names:
        lines[1 + names.index(chosen) - first].stylize("reverse")
    return [*lines, _line(f"and {hidden} more", "dim")] if hidden else lines


@contextmanager
def _keys() -> Iterator[None]:
    """Have keys at once and unseen, and the terminal restored afterwards."""
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
    """Return the key pressed within so many seconds, else nothing; arrows and Escape have names."""
    import os

    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    read = os.read(sys.stdin.fileno(), 8).decode(errors="replace") if ready else ""
    return _SEQUENCES.get(read, read[:1])
