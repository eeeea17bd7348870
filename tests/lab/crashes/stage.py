"""The stage: a folder with settings of its own; what lives and may be killed runs in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from platforms.local.adapter import Claim, Session
from scheduler.app import load_app
from scheduler.rehearsal.folder import Rehearsal, clear, reopen, write_settings
from scheduler.rehearsal.run import prepare, read_base
from scheduler.store.engine import open_database
from tests.lab.crashes.processes import kill, working_for
from tests.lab.patience import until
from tests.lab.typed import Typed, typed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.store.engine import Database

# Two places with the rules of real ones in small, so that six hours see sessions cut, resumed, moved and shared.
POOLS = """
[[pools]]
name = "kaggle"
platform = "local"
devices_per_session = 2
sessions_max = 1
vram_gib = 15
session_cap = "3h"
session_min = "1h"

[[pools.quotas]]
name = "GPU hours of the week"
kind = "week"
limit = "30h"
resets = "Saturday 00:00"

[[pools]]
name = "desk"
platform = "local"
vram_gib = 24
session_cap = "2h"
session_min = "1h"
"""
MODELS = """
[defaults]
role = "manager"
command = ["{python}", "{payload}/trainers/charlm.py", "--pace", "200", "--batch", "16", "--width", "32"]
target_step = 100_000
steps_per_hour = 200
setup = "1m"
checkpoint = "10s"
needs = { devices = 1, vram_gib = 4, dtype = "fp32" }
mixture = {}
# On a slow machine whole sessions pass before a command has its first step: that burns no hours of anybody.
stall = { first_progress = "off", no_progress = "off", checkpoint = "off" }

[[jobs]]
name = "main"
role = "main"
weight = 3
seed = 1

[[jobs]]
name = "left"
weight = 2
seed = 2

[[jobs]]
name = "right"
weight = 2
seed = 3
"""
# Real text on every machine, small enough to be read in a moment.
SOURCE = Path(json.__file__).parent.parent / "email"


@dataclass
class Stage:
    """A rehearsal in ``folder/week``, its commands and its processes. Close it: it leaves no process behind."""

    folder: Path
    pools: str = POOLS
    models: str = MODELS
    hours: float = 6.0
    scale: float = 3_600.0
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "models.toml").write_text(self.models)
        self.settings.write_text(f'models = ["models.toml"]\n[corpus]\nsources = ["{SOURCE}"]\n{self.pools}')

    @property
    def settings(self) -> Path:
        """The settings that the rehearsal begins with."""
        return self.folder / "settings.toml"

    @property
    def week(self) -> Path:
        """The rehearsal's own folder."""
        return self.folder / "week"

    @property
    def rehearsal(self) -> Rehearsal:
        """The rehearsal that was begun; raises Refusal before."""
        return reopen(self.week)

    def now(self) -> int:
        """Return the rehearsal's present, in UTC seconds."""
        return load_app(self.rehearsal.config, {}).clock.now()

    @property
    def log(self) -> str:
        """All that daemons of the rehearsal said."""
        return self.rehearsal.log.read_text() if self.rehearsal.log.exists() else ""

    # -- commands ---------------------------------------------------------------------------------------------------

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start ``schedctl`` with ``words`` and leave it running; its output goes to files that ``ended`` reads."""
        number = len(self._started)
        with (self.folder / f"{number}.out").open("wb") as out, (self.folder / f"{number}.err").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "scheduler", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, "NO_COLOR": "1", "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(_code())},
            )
        self._started.append(process)
        return process

    def ended(self, process: subprocess.Popen[bytes], seconds: float = 300.0) -> Typed:
        """Wait for a started command and return what it did."""
        number = self._started.index(process)
        code = process.wait(seconds)
        return Typed(code, *((self.folder / f"{number}.{end}").read_text(errors="replace") for end in ("out", "err")))

    def said(self, process: subprocess.Popen[bytes]) -> Path:
        """Return the file with what a started command says on standard error."""
        return self.folder / f"{self._started.index(process)}.err"

    def type(self, *words: str, config: Path | None = None) -> Typed:
        """Run ``schedctl`` with ``words`` on the settings that the rehearsal wrote, or on others.

        In this process: an interpreter of its own would prove nothing about these commands.
        """
        return typed(config or self.week / "rehearsal.toml", *words)

    def prepare(self) -> None:
        """Make everything that a rehearsal needs and start its clock, but no daemon."""
        epoch = 1_795_219_200  # a Saturday 00:00 UTC
        clear(self.week)
        prepare(Rehearsal(self.week, epoch, self.hours, self.scale, 0.0), read_base(self.settings), 0)

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        """Start the rehearsal."""
        return self.start("--config", str(self.settings), *self._rehearse(*words))

    def refused(self, *words: str) -> Typed:
        """Type the rehearsal, in this process, where it is to be refused."""
        return self.type(*self._rehearse(*words), config=self.settings)

    def _rehearse(self, *words: str) -> Sequence[str]:
        return "rehearse", "--hours", str(self.hours), "--scale", str(self.scale), "--out", str(self.week), *words

    def resume(self) -> subprocess.Popen[bytes]:
        """Go on with the rehearsal."""
        return self.start("rehearse", "--out", str(self.week), "--resume")

    def cut(self, hours: float) -> None:
        """Let the rehearsal end ``hours`` from now, however long it was to be; the next daemon reads it."""
        document = tomllib.loads(self.rehearsal.config.read_text())
        document["daemon"]["stop_at"] = self.now() + round(hours * 3_600)
        write_settings(self.rehearsal, document)

    def daemon(self) -> subprocess.Popen[bytes]:
        """Start a daemon of the rehearsal, on its own; it says on standard error what it does."""
        return self.start("--config", str(self.week / "rehearsal.toml"), "daemon")

    # -- what can be seen -------------------------------------------------------------------------------------------

    def database(self) -> Database:
        """Open the rehearsal's database; the caller closes it."""
        return open_database(f"sqlite:///{self.rehearsal.state}/scheduler.db")

    def has_begun(self) -> bool:
        """Whether a daemon has the week in hand."""
        return self.daemon_pid() is not None and '"daemon.started"' in self.log

    def daemon_pid(self) -> int | None:
        """Return the live daemon of the rehearsal."""
        config = str(self.week / "rehearsal.toml")
        found = [pid for pid, words in working_for(self.week).items() if words.split()[-2:] == [config, "daemon"]]
        return found[0] if found else None

    def sessions(self) -> list[Session]:
        """Return every session that was ever ordered, by launch key."""
        root = self.week / "state" / "sessions"
        folders = [path for path in root.glob("*/*") if path.is_dir() and not path.name.startswith(".")]
        return [Session(path.name, path) for path in sorted(folders, key=lambda path: path.name)]

    def live(self) -> dict[str, Claim]:
        """Return the claims of the sessions that run, by launch key."""
        claims = ((session.key, session.claim(), session.agent()) for session in self.sessions())
        return {key: claim for key, claim, agent in claims if isinstance(claim, Claim) and agent is not None}

    def manifests(self, job: str | None = None) -> list[Path]:
        """Return the published manifests, of one job if asked, by step."""
        return sorted((self.week / "artifacts" / "jobs").glob(f"{job or '*'}/manifests/*.json"))

    def until_saved(self, job: str | None = None, count: int = 1) -> list[Path]:
        """Wait until ``count`` manifests are in the store and return them."""
        return until(
            lambda: found if len(found := self.manifests(job)) >= count else [], f"{count} manifests of {job or 'all'}"
        )

    # -- the end ----------------------------------------------------------------------------------------------------

    def kill_daemon(self) -> int:
        """Kill the live daemon with SIGKILL, wait until it is gone, and return which it was."""
        pid = until(self.daemon_pid, "a live daemon")
        kill(pid)
        until(lambda: pid not in working_for(self.week), f"the end of {pid}")
        return pid

    def close(self) -> dict[int, str]:
        """End everything that was started here; return what had to be killed."""
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        left = working_for(self.folder)
        until(self._all_killed, "the end of all processes")
        return left

    def _all_killed(self) -> bool:
        left = working_for(self.folder)
        for pid in left:
            kill(pid)
        return not left


def _code() -> Sequence[str]:
    """Where our packages lie, so that the commands are those of the tree under test."""
    import scheduler

    return [str(Path(scheduler.__file__).parent.parent)]
