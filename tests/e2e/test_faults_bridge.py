"""Kills around an Elixir client: the port, the daemon and the BEAM in every order, while sessions train."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scheduler.store import events
from tests.lab.crashes.processes import kill, working_for
from tests.lab.crashes.stage import Stage
from tests.lab.patience import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.services("mix")

PROJECT = Path(__file__).parents[2] / "bridges" / "elixir"
ORDERS = list(permutations(("port", "daemon", "beam")))


@pytest.fixture(scope="module")
def beams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the client is compiled."""
    folder = tmp_path_factory.mktemp("elixir") / "project"
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("_build", "deps"))
    place = {**os.environ, "LANG": "C.UTF-8", "HOME": str(folder.parent), "MIX_ENV": "prod"}
    subprocess.run(["mix", "compile"], check=True, cwd=folder, env=place, capture_output=True, timeout=300)
    return folder / "_build" / "prod" / "lib" / "uff_scheduler" / "ebin"


class Recorder:
    """A BEAM whose supervised reader writes the number of every event into a file."""

    def __init__(self, stage: Stage, beams: Path) -> None:
        self.stage = stage
        self.file = stage.folder / "seen.txt"
        script = str(PROJECT / "test" / "support" / "recorder.exs")
        config = str(stage.week / "rehearsal.toml")
        self._words = ["elixir", "-pa", str(beams), script, sys.executable, config, str(self.file)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the BEAM."""
        with (self.stage.folder / "beam.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "LANG": "C.UTF-8", "PYTHONSAFEPATH": "1"},
            )

    def seen(self) -> list[int]:
        """Return the numbers of all events that were worked through, whole lines only."""
        text = self.file.read_text() if self.file.exists() else ""
        return [int(line) for line in text[: text.rfind("\n") + 1].split()]

    def port(self) -> int | None:
        """Return the live port."""
        return next(
            (pid for pid, words in working_for(self.stage.folder).items() if words.split()[-1:] == ["port"]), None
        )

    def kill_port(self) -> None:
        """Kill the port with SIGKILL; the client opens another."""
        pid = until(self.port, "a port")
        kill(pid)
        until(lambda: self.port() not in {None, pid}, "another port")

    def kill_beam(self) -> None:
        """Kill it with SIGKILL; its port ends by itself, and another BEAM goes on."""
        if self.process is None:
            raise AssertionError("not started")
        before = self.port()
        self.process.kill()
        self.process.wait()
        until(lambda: before is None or before not in working_for(self.stage.folder), "the end of the port")
        self.start()

    def stop(self) -> None:
        """End the BEAM, and see that its port ends with it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        until(lambda: self.port() is None, "the end of the last port")


@pytest.fixture
def recorder(running: Stage, beams: Path) -> Iterator[Recorder]:
    """A reader of the events of a rehearsal in which two sessions train."""
    found = Recorder(running, beams)
    found.start()
    yield found
    found.stop()


def _storm(stage: Stage, recorder: Recorder, order: tuple[str, ...]) -> None:
    """Kill each once, in this order. Sessions that train go on, or end as the plan has it."""
    for victim in order:
        live = stage.live()
        match victim:
            case "port":
                recorder.kill_port()
            case "beam":
                recorder.kill_beam()
            case _:
                stage.kill_daemon()
                stage.daemon()
                until(stage.daemon_pid, "the next daemon")
        # Nobody was killed with them: who claimed a session then still has it, or has ended it by itself.
        now = {session.key: session.claim() for session in stage.sessions()}
        assert all(now[key] == claim for key, claim in live.items()), (victim, live, now)
    _all_seen(stage, recorder)


def _all_seen(stage: Stage, recorder: Recorder) -> None:
    """Every event of the database was worked through, once, in order."""
    database = stage.database()
    with database.read() as tx:
        newest = events.newest_id(tx)
    until(lambda: (recorder.seen() or [0])[-1] >= newest, f"event {newest}")
    seen = recorder.seen()
    with database.read() as tx:
        written = [event.id for event in events.tail(tx, 0, 1_000_000) if event.id <= seen[-1]]
    database.close()
    assert seen == written


@pytest.mark.nightly  # the client and the port are killed with every push by their own tests
def test_killed_in_one_order_nothing_is_lost_or_doubled(
    running: Stage, recorder: Recorder, settled: Callable[[Stage], None]
) -> None:
    _storm(running, recorder, ("port", "daemon", "beam"))
    recorder.stop()
    settled(running)  # nothing was run twice, and nothing is left


@pytest.mark.nightly
@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_killed_in_every_order_nothing_is_lost_or_doubled(
    running: Stage, recorder: Recorder, settled: Callable[[Stage], None], order: tuple[str, ...]
) -> None:
    for _ in range(3):
        _storm(running, recorder, order)
    recorder.stop()
    settled(running)
