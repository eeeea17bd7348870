"""kill -9 of the real daemon in the middle of deployments: never half a version, never two that serve, never stuck."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from platforms.artifacts.directory import DirectoryStore
from scheduler.clock import real_now
from scheduler.store import deployments
from scheduler.store.engine import Database
from tests.lab.crashes.processes import kill, working_for
from tests.lab.databases import new_database
from tests.lab.patience import pause, until
from tests.lab.releases import WEIGHTS, weights
from tests.lab.versions import make_version

SETTINGS = """
state_dir = "{home}/state"
models = []

[clock]
epoch = 1790000000.0
origin = {origin}
scale = 60.0

[daemon]
lease = "3s"

[[pools]]
name = "desk"
platform = "local"

[[targets]]
name = "griffith"
kind = "directory"
automatic = true

[targets.options]
path = "{home}/served"
restart = "touch {home}/restarted-$VERSION; cat {home}/served/$MODEL/current/{weights} > {home}/running"
health = "touch {home}/asked-$VERSION; sleep 0.3; cmp {home}/running $FOLDER/{weights}"
restart_time = "20s"
health_time = "20s"
"""


class Griffith:
    """A real daemon that deploys, and what its target shows to whoever looks, all the time."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "config.toml").write_text(SETTINGS.format(home=home, origin=real_now(), weights=WEIGHTS))
        self.database: Database = new_database(home / "state" / "scheduler.db")
        self.artifacts = DirectoryStore(home / "state" / "artifacts")
        self.known: dict[bytes, int] = {}
        self.odd: list[str] = []
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start a daemon."""
        words = [sys.executable, "-m", "scheduler", "--config", str(self.home / "config.toml"), "daemon"]
        with (self.home / "daemon.log").open("ab") as log:
            self._daemon = subprocess.Popen(words, stderr=log, stdout=log, cwd=self.home)

    def kill(self, *, all_of_it: bool) -> None:
        """Kill the daemon, and what it had begun at the target as well, as when the power goes."""
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()
        for pid in working_for(self.home / "served") if all_of_it else ():
            kill(pid)

    def version(self) -> int:
        """Make a new version and put it in force; return its number."""
        data = f"weights {len(self.known) + 1} ".encode() * 200_000
        self.known[weights(data)] = len(self.known) + 1
        return make_version(self.database, self.artifacts, 1_790_000_000, data).number

    def rows(self) -> list[tuple[int, str]]:
        """Return numbers and states of all deployments."""
        with self.database.read() as tx:
            return [(row.number, row.state) for row in deployments.of_model(tx, "ufm")]

    def serves(self, number: int) -> bool:
        """Tell whether a version serves by the books, at the target and in the server's memory."""
        place = self.home / "served" / "ufm" / "current" / WEIGHTS
        books = [found for found, state in self.rows() if state == "serving"]
        return books == [number] and self.known.get(place.read_bytes()) == number

    def close(self) -> None:
        """End everything."""
        self.kill(all_of_it=True)
        self._over.set()
        self._watcher.join()
        self.database.close()

    def _watch(self) -> None:
        current = self.home / "served" / "ufm" / "current"
        begun = False
        while not self._over.is_set():
            try:
                with (current / WEIGHTS).open("rb") as stream:
                    found = stream.read()
            except FileNotFoundError:
                # The link is followed in two steps: what it left may be gone between them, the link itself not.
                if begun and not current.is_symlink():
                    self.odd.append("nothing is pointed at")
            else:
                begun = True
                if found not in self.known:
                    self.odd.append(f"{len(found)} bytes of no version")
            pause(0.002)


@pytest.fixture
def griffith(tmp_path: Path) -> Iterator[Griffith]:
    (tmp_path / "state").mkdir(mode=0o700)
    found = Griffith(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize(
    "points",
    [
        ("written down", "files there", "link changed", "asked"),
        pytest.param(("files fetched", "files on their way", "restarted"), marks=pytest.mark.nightly),
    ],
)
def test_a_daemon_that_is_killed_at_any_point_of_a_deployment_is_followed_by_one_that_ends_it(
    griffith: Griffith, points: tuple[str, ...]
) -> None:
    first = griffith.version()
    griffith.start()
    until(lambda: griffith.serves(first), "the first deployment")
    served = griffith.home / "served" / "ufm"
    told: dict[str, Callable[[int], bool]] = {
        "written down": lambda number: (number, "intended") in griffith.rows(),
        "files fetched": lambda _: any((griffith.home / "state/inputs/deployments/ufm").glob("[0-9.]*")),
        "files on their way": lambda number: any((served / "releases").glob(f".in-{number}-*")),
        "files there": lambda number: (served / "releases" / str(number)).is_dir(),
        "link changed": lambda number: (served / "current").readlink().name == str(number),
        "restarted": lambda number: (griffith.home / f"restarted-{number}").exists(),
        "asked": lambda number: (griffith.home / f"asked-{number}").exists(),
    }
    for turn, what in enumerate(points):
        reached, number = told[what], griffith.version()

        def over(number: int = number, reached: Callable[[int], bool] = reached) -> bool:
            return reached(number) or griffith.serves(number)

        until(over, what, every=0.001)
        griffith.kill(all_of_it=turn % 2 == 0)
        griffith.start()
        until(lambda number=number: griffith.serves(number), f"version {number} after a kill when {what}")  # type: ignore[misc]
    assert griffith.odd == []
    numbers = [number for number, state in griffith.rows() if state in {"serving", "replaced"}]
    assert numbers == sorted(set(numbers)), "each version served once"
    assert griffith.rows()[-1] == (len(griffith.known), "serving")
    assert (griffith.home / "running").read_bytes() == next(
        data for data, number in griffith.known.items() if number == len(griffith.known)
    )
