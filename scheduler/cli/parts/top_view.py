"""What `top` does at a key and shows beside its tables: a job chosen, its log, its facts, a question, a filter."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Literal

from jobs.definition import RANGES
from scheduler.cli.parts.screen import ORDERS, facts
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Exit, code_of
from scheduler.core.job import Active, Cancelled, Done, Failed, Held, Queued
from scheduler.core.why import why
from scheduler.service.requests import queue
from scheduler.service.requests.sessions import followed_log, lane_lines
from scheduler.store import runs
from scheduler.store.jobs import JobRecord
from scheduler.views.overview import Overview
from scheduler.views.verdict import when

KEYS = (
    ("↑ ↓, k j", "choose a job"),
    ("Enter, e", "explain it: how it trains, why it waits, what is planned"),
    ("l", "the log of its newest session as it grows"),
    ("h", "hold it, after a question; a session that runs saves and ends"),
    ("r", "release it, when it is held, failed or cancelled"),
    ("p", "give it another priority"),
    ("f", "show all jobs, those that run, that wait, or that need a look"),
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
_LOG_PAUSE_SECONDS = 2.0  # between two questions to a platform
_SAVES = "\r\n"


class _Left(Exception):
    """Nobody looks at this log any more."""


@dataclass
class View:
    """What is looked at. ``prompt`` is a question that the keys typed answer; ``message`` is what came of the last."""

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
    left: Event = field(default_factory=Event)  # told to who reads a log that is not shown any more

    def keeps(self, job: JobRecord) -> bool:
        """Return whether the filters show a job."""
        return isinstance(job.state, _FILTERS[self.filter]) and self.name in job.spec.name

    def press(self, key: str, rows: Sequence[str]) -> None:
        """Do what a key means; ``rows`` are the names of the jobs on the screen, in order."""
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
        """Return the line that asks, or what came of the last answer."""
        words = {
            "hold": f"Hold {self.chosen}? y or n",
            "weight": f"Priority of {self.chosen}: {self.typed}_",
            "name": f"Names with: {self.typed}_",
        }
        return words.get(self.prompt, self.message)

    def lines(self, overview: Overview, zone: str) -> list[str]:
        """Return the lines of a page other than the main one."""
        if self.page == "help":
            return [f"{keys:<10}{what}" for keys, what in KEYS]
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
        """Take a key while something is asked."""
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
        """Change the chosen job and say so, or why not."""
        try:
            change(self.cli.now)
        except Exception as error:
            if code_of(error) is Exit.BUG:
                raise
            self.message = str(error)
            return
        from scheduler.wake import wake

        answers = wake(self.cli.paths.state_dir)
        self.message = f"{self.chosen} is {done}" + ("" if answers else "; no daemon runs, the next one acts on it")

    def _read_log(self) -> None:
        """Follow the newest session's log beside the drawing: a platform may take its time."""
        self.left.set()
        self.left = Event()
        self.log = deque(maxlen=_LOG_LINES)  # who still reads another one fills what is not shown
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
                pieces = followed_log(self.cli.app.database, self.cli.platform(run.pool), run.key, pause)
                for line in lane_lines(pieces, run, index):
                    into.append(self.cli.redact(line.decode("utf-8", "replace").rstrip("\n")))
                into.append("The session has ended.")
            except _Left:
                return
            except Exception as error:  # noqa: BLE001 - whatever a platform says is what there is to show
                into.append(f"The log cannot be read: {error}")

        Thread(target=read, daemon=True).start()


def explained(overview: Overview, name: str, zone: str) -> list[str]:
    """Return what is known of a job in lines: how it trains, why it waits, what is planned, what it needs."""
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
