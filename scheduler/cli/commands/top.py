"""`schedctl top`: a view of sessions, quotas and queue that is redrawn, with keys to select and change jobs."""

import os
import select
import shutil
import sys
import termios
import tty
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Annotated, Literal

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from jobs.definition import RANGES
from scheduler.cli.parts import OVER
from scheduler.cli.parts.screen import ORDERS, ScreenTable, facts, headline, read_overview, sections, verdict_line
from scheduler.cli.shell.command import command, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Exit, UsageFault, code_of
from scheduler.cli.shell.output import clean, painted, plain
from scheduler.cli.shell.table import column_of, drawn
from scheduler.core.job import Active, Cancelled, Done, Failed, Held, Queued
from scheduler.core.why import why
from scheduler.service.requests import queue
from scheduler.service.requests.sessions import followed_log, lane_lines
from scheduler.store import runs
from scheduler.store.jobs import JobRecord
from scheduler.views.overview import Overview
from scheduler.views.verdict import when
from scheduler.wake import wake

_JOBS, _SESSIONS = "Jobs", "Sessions"
_HEAD_LINES = 3
_LINES_OF_ALL = 40  # a terminal with fewer lines does not show finished jobs
_LINES_OF_FEW = 30  # a terminal with fewer lines has no blank lines and no table of sessions
_TITLE_LINES, _TITLE_LINES_OF_FEW = 3, 2  # a blank line, the title, the column titles
# Share of the lines for each section, in display order; the last ones are left out first.
_SHARES = {"Actions required": 0.25, _JOBS: 0.5, _SESSIONS: 0.3, "Pools": 0.35, "Under way": 0.2, OVER: 0.2}
_ROWS_MIN = 2
_JOBS_MIN = 8  # if sessions are not shown
_KEYS = "q quit   ? keys   e explain   l log   s order"
_SEQUENCES = {"\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\x1b": "esc"}
_KEYS_SHOWN = (
    ("↑ ↓, k j", "choose a job"),
    ("Enter, e", "explain it: how it trains, why it waits, what is planned"),
    ("l", "the log of its newest session as it grows"),
    ("h", "hold it, after a question; a session that runs saves and ends"),
    ("r", "release it, when it is held, failed or cancelled"),
    ("p", "give it another priority"),
    ("f", "show all jobs, the running ones, the waiting ones, or those held or failed"),
    ("/", "show jobs whose name contains a text"),
    ("s", f"change the order: {', '.join(ORDERS)}"),
    ("Esc", "back"),
    ("q", "quit"),
)
_FILTERS: dict[str, tuple[type, ...]] = {
    "all": (Active, Queued, Held, Failed, Done, Cancelled),
    "running": (Active,),
    "waiting": (Queued,),
    "held or failed": (Held, Failed),
}
_LOG_LINES = 200
_LOG_PAUSE_SECONDS = 2.0  # between two reads of a log
_SAVES = "\r\n"


@command("schedctl top", "schedctl top --once")
def top(
    cli: Cli,
    once: Annotated[bool, option("--once", "Draw one picture and leave.")] = False,
    every: Annotated[float, option("--every SECONDS", "Seconds between looks.", min=0.2)] = 2.0,
    order: Annotated[str, option("--order", "Order: place (in the queue), progress, state or name.")] = "place",
) -> None:
    """Watch what runs, what is left and what waits. Keys: ? shows them all, q leaves.

    It goes on while the daemon is down or the database does not answer, and says so.
    """
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
    """The picture on the terminal. While the database does not answer, it shows the last state that was read."""

    def __init__(self, cli: Cli, order: str) -> None:
        self.view = View(cli, order)
        self.job_names: list[str] = []
        self._cli = cli
        self._overview: Overview | None = None
        self._trouble = ""

    def draw(self, *, fresh: bool = True) -> Group:
        """Return the picture, at most as large as the terminal; ``fresh`` reads the database again."""
        overview = self._refreshed() if fresh or self._overview is None or self.view.message else self._overview
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

    def _refreshed(self) -> Overview:
        """Read the overview and return it; if the database fails, keep the error and return the previous overview."""
        try:
            self._overview, self._trouble = read_overview(self._cli), ""
        except Exception as error:
            if code_of(error) is Exit.BUG or self._overview is None:
                raise
            self._trouble = f"Nothing new since: {error}"
        return self._overview

    def _tables(self, overview: Overview, room: int, lines: int) -> list[Text]:
        """Return the sections that fit into ``room`` lines, and store the names of the jobs."""
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
    return Text(clean(text), style=style, no_wrap=True, overflow="ellipsis")


def _table(section: ScreenTable, most: int, chosen: str, *, colour: bool) -> list[Text]:
    """Return a section as at most ``most`` rows and a line of titles; the ``chosen`` job is always among the rows."""
    columns = [column_of(title) for title in section.columns]
    kept = [at for at, column in enumerate(columns) if not column.below]  # the page "explain" shows the command
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
    """Switch the terminal to unbuffered input without echo, and restore it afterwards."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _key(seconds: float) -> str:
    """Return the key pressed within ``seconds``, empty if none; arrows and Escape have names."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    read = os.read(sys.stdin.fileno(), 8).decode(errors="replace") if ready else ""
    return _SEQUENCES.get(read, read[:1])


# The state of the view, and the effect of each key.
class _Left(Exception):
    """The log is no longer shown; ends the thread that follows it."""


@dataclass
class View:
    """The view: ``prompt`` is an open question, ``typed`` the answer so far, ``message`` the last result."""

    cli: Cli
    order: str
    page: Literal["main", "explain", "log", "help"] = "main"
    chosen: str = ""
    filter: str = "all"
    name: str = ""
    prompt: Literal["", "hold", "weight", "name"] = ""
    typed: str = ""
    message: str = ""
    log: deque[str] = field(default_factory=lambda: deque(maxlen=_LOG_LINES))
    over: bool = False
    left: Event = field(default_factory=Event)  # set when the log is no longer shown

    def keeps(self, job: JobRecord) -> bool:
        """Return whether the filters let a job through."""
        return isinstance(job.state, _FILTERS[self.filter]) and self.name in job.spec.name

    def press(self, key: str, rows: Sequence[str]) -> None:
        """Handle a key; ``rows`` are the names of the jobs on the screen, in order."""
        if self.prompt:
            self._answer(key)
            return
        self._understand(key, rows)
        if self.page != "log":
            self.left.set()

    def _understand(self, key: str, rows: Sequence[str]) -> None:
        self.message = ""
        match key:
            case "q" | "Q" | "\x03":
                self.over = True
            case "esc" if self.page == "main" and not (self.name or self.filter != "all"):
                self.over = True
            case "esc":
                self.page, self.name, self.filter = "main", "", "all"
            case "up" | "k" | "down" | "j":
                by = -1 if key in {"up", "k"} else 1
                at = rows.index(self.chosen) + by if self.chosen in rows else 0
                self.chosen = rows[min(max(at, 0), len(rows) - 1)] if rows else self.chosen
            case "?":
                self.page = "help"
            case "s" | "S":
                self.order = ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)]
            case "f":
                names = list(_FILTERS)
                self.filter = names[(names.index(self.filter) + 1) % len(names)]
            case "/":
                self.prompt, self.typed = "name", ""
            case _ if self.chosen:
                self._act(key)
            case _:
                pass

    def question(self) -> str:
        """Return the open question, or the result of the last answer."""
        words = {
            "hold": f"Hold {self.chosen}? y or n",
            "weight": f"Priority of {self.chosen}: {self.typed}_",
            "name": f"Names with: {self.typed}_",
        }
        return words.get(self.prompt, self.message)

    def lines(self, overview: Overview, zone: str) -> list[str]:
        """Return the lines of a page other than the main one."""
        if self.page == "help":
            return [f"{keys:<10}{what}" for keys, what in _KEYS_SHOWN]
        if self.page == "log":
            return list(self.log.copy())
        return explained(overview, self.chosen, zone)

    def _act(self, key: str) -> None:
        match key:
            case "\r" | "\n" | "e":
                self.page = "explain"
            case "l":
                self.page = "log"
                self._read_log()
            case "h":
                self.prompt = "hold"
            case "p":
                self.prompt, self.typed = "weight", ""
            case "r":
                self._do(lambda now: queue.release(self.cli.app.database, self.chosen, now, self.cli.who), "released")
            case _:
                pass

    def _answer(self, key: str) -> None:
        """Handle a key while a question is open."""
        if self.prompt == "hold":
            self.prompt = ""
            if key in {"y", "Y"}:
                hold = queue.hold
                self._do(lambda now: hold(self.cli.app.database, self.chosen, "", now, self.cli.who), "held")
        elif key == "esc":
            self.prompt = ""
        elif key == "\x7f":
            self.typed = self.typed[:-1]
        elif key in _SAVES:
            question, self.prompt = self.prompt, ""
            if question == "name":
                self.name = self.typed
            else:
                self._weigh()
        elif len(key) == 1 and key.isprintable():
            self.typed += key

    def _weigh(self) -> None:
        try:
            weight = float(self.typed)
        except ValueError:
            weight = -1.0
        if not RANGES["priority"].holds(weight):
            self.message = f"{self.typed} is no priority in the range {RANGES['priority']}"
            return
        change = queue.change
        self._do(
            lambda now: change(self.cli.app.database, self.chosen, now, self.cli.who, weight=weight),
            f"of priority {weight:g}",
        )

    def _do(self, change: Callable[[int], object], done: str) -> None:
        """Change the chosen job; ``message`` is the result or the error."""
        try:
            change(self.cli.now)
        except Exception as error:
            if code_of(error) is Exit.BUG:
                raise
            self.message = str(error)
            return
        answers = wake(self.cli.paths.state_dir)
        self.message = f"{self.chosen} is {done}" + ("" if answers else "; no daemon runs, the next one acts on it")

    def _read_log(self) -> None:
        """Follow the log of the newest session in a thread, since a platform may answer slowly."""
        self.left.set()
        self.left = Event()
        self.log = deque(maxlen=_LOG_LINES)  # a thread that still reads the previous log writes into its old queue
        with self.cli.app.database.read() as tx:
            newest = runs.recent(tx, 1, job=self.chosen)
        if not newest or newest[0].pool not in self.cli.app.pools:
            self.log.append("It has no session whose log can be read.")
            return
        (run,), into, left = newest, self.log, self.left
        index = next(lane.index for lane in run.lanes if lane.job == self.chosen)

        def pause() -> None:
            if left.wait(_LOG_PAUSE_SECONDS):
                raise _Left

        def read() -> None:
            into.append(f"{run.key} on {run.pool}")
            try:
                pieces = followed_log(self.cli.app.database, self.cli.app.platform(run.pool), run.key, pause)
                for line in lane_lines(pieces, run, index):
                    into.append(self.cli.redact(line.decode("utf-8", "replace").rstrip("\n")))
                into.append("The session has ended.")
            except _Left:
                return
            except Exception as error:  # noqa: BLE001 - any error of a platform is shown instead of the log
                into.append(f"The log cannot be read: {error}")

        Thread(target=read, daemon=True).start()


def explained(overview: Overview, name: str, zone: str) -> list[str]:
    """Return lines that explain a job: its training, why it waits, what is planned, and the actions it requires."""
    job = next((job for job in overview.jobs if job.spec.name == name), None)
    if job is None:
        return [f"{name} is not in the queue any more."]
    going = next(one for one in overview.trainings if one.job == name)
    reason, placement = overview.waits.get(name), overview.next.get(name)
    pairs = [
        ("job", name),
        ("state", type(job.state).__name__.lower()),
        (
            "why",
            why(job.state, reason.to_json() if reason and isinstance(job.state, Queued) else None, zone, overview.at),
        ),
        *facts(going, overview.at, zone),
        ("priority", f"{job.spec.weight:g}"),
    ]
    if placement is not None and not isinstance(job.state, Active):
        pairs.append(("planned", f"{placement.pool} from {when(placement.start, overview.at, zone)}"))
    pairs += [("action", f"{need.why}: {need.remedy}") for need in overview.needs if need.subject == name]
    pairs.append(("more", f"schedctl plan explain {name}"))
    return [f"{title:<10}{text}" for title, text in pairs if text]
