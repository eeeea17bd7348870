"""The machine's clock is set while the daemon runs: it notices, goes on at once, and its books stay in order."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.store import due, events
from scheduler.store.engine import open_database
from scheduler.store.lease import current
from scheduler.store.verify import verify
from tests.lab.patience import PATIENCE_SECONDS, until

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
CONFIG = """
state_dir = "state"
models = []

[daemon]
cycle = "1s"
lease = "6s"

[[pools]]
name = "desk"
platform = "local"
"""


class Machine:
    """A daemon on a machine whose clock a test can set; monotonic time goes on as it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._offset = folder / "offset"
        self.set_clock("+0")
        (folder / "config.toml").write_text(CONFIG)
        faked = {
            "LD_PRELOAD": str(LIBRARIES[-1]),
            "FAKETIME_TIMESTAMP_FILE": str(self._offset),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        schedctl = [sys.executable, "-m", "scheduler", "--config", str(folder / "config.toml")]
        subprocess.run([*schedctl, "db", "init"], check=True, stdout=subprocess.DEVNULL)
        with self.log.open("wb") as log:
            self.daemon = subprocess.Popen(
                [*schedctl, "daemon"], env={**os.environ, **faked}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.database = open_database(f"sqlite:///{folder / 'state' / 'scheduler.db'}")

    @property
    def log(self) -> Path:
        """What the daemon says."""
        return self.folder / "log"

    def set_clock(self, offset: str) -> None:
        """Set the clock, relative to the true time."""
        fresh = self._offset.with_suffix(".new")
        fresh.write_text(f"{offset}\n")
        fresh.replace(self._offset)

    def cycle_due(self) -> int:
        """Return when the daemon says that its next cycle is due."""
        with self.database.read() as tx:
            return due.next_due(tx).get(due.CYCLE, 0)

    def goes_on(self) -> None:
        """Wait until cycles end and leases are renewed by the clock as it is now."""
        seen = self.cycle_due()
        until(lambda: self.cycle_due() != seen or self.daemon.poll() is not None, "a cycle after the clock was set")
        again = self.cycle_due()
        until(lambda: self.cycle_due() > again or self.daemon.poll() is not None, "a cycle after that")
        assert self.daemon.poll() is None, self.log.read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A daemon that has begun."""
    if not LIBRARIES:
        pytest.skip("NOT PROVEN: a clock that is set; libfaketime is not installed")
    made = Machine(tmp_path)
    until(lambda: made.cycle_due() or made.daemon.poll() is not None, "the first cycle")
    yield made
    made.daemon.kill()
    made.daemon.wait()
    made.database.close()


@pytest.mark.parametrize(("offset", "seconds"), [("-1h", -3_600), ("+1h", 3_600)], ids=["back", "forward"])
def test_a_clock_that_is_set_stops_nothing(machine: Machine, offset: str, seconds: int) -> None:
    """Set back an hour, a timer that goes by the wall clock would sleep for that hour, and the lease with it."""
    before = machine.cycle_due()
    machine.set_clock(offset)
    until(lambda: "clock.set" in machine.log.read_text() or machine.daemon.poll() is not None, "the daemon's notice")
    machine.goes_on()
    assert abs(machine.cycle_due() - before - seconds) < 300
    machine.set_clock("+0")
    until(lambda: machine.log.read_text().count("clock.set") == 2, "the second notice")
    machine.goes_on()
    machine.daemon.terminate()
    assert machine.daemon.wait(PATIENCE_SECONDS) == 0, machine.log.read_text()
    with machine.database.read() as tx:
        assert current(tx) is None
        kinds = [event.kind for event in events.tail(tx)]
    assert kinds == ["daemon.started", "daemon.stopped"]
    assert verify(machine.database) == []
    assert "Traceback" not in machine.log.read_text()
