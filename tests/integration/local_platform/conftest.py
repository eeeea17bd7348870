"""What the tests of the local platform share: a machine on which sessions are real processes, started in both ways."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from platforms.base import LaunchRequest, Observed, Platform, SessionState
from platforms.local.processes import MARK, start_ticks
from platforms.local.spawn import RUNNER_VARIABLE
from platforms.registry import PlatformContext, load
from scheduler.clock import ScaledClock, system_clock
from tests.lab.patience import PATIENCE_SECONDS, until

# Does what the launch document says, in order.
AGENT = """
import json, os, signal, subprocess, sys
with open(sys.argv[1]) as stream:
    launch = json.load(stream)
if launch.get("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
for family in launch.get("children", ()):
    script = "import signal, subprocess; subprocess.Popen(['sleep', '1000']); print('child', flush=True)"
    subprocess.Popen([sys.executable, "-c", script + "; signal.pause()"], start_new_session=family == "own session")
if launch.get("bare"):
    print("bare", subprocess.Popen(["sleep", "1000"], env={}, process_group=0).pid, flush=True)
if "print_bytes" in launch:
    sys.stdout.write("x" * launch["print_bytes"])
if launch.get("tell"):
    print(json.dumps({name: os.environ.get(name) for name in launch["tell"]}), os.getpriority(os.PRIO_PROCESS, 0))
print("ready", flush=True)
if "exit" in launch:
    sys.exit(launch["exit"])
signal.pause()
"""


@dataclass
class Machine:
    """The local platform on a folder, and the helpers of these tests."""

    folder: Path
    clock: ScaledClock = field(default_factory=system_clock)
    settings: dict[str, str] = field(default_factory=dict)
    sessions_max: int = 4
    cap_seconds: int = 43_200
    python: str = sys.executable

    @property
    def state(self) -> Path:
        """The platform's state folder."""
        return self.folder / "state"

    def adapter(self) -> Platform:
        """A new adapter object, as a restarted daemon has."""
        context = PlatformContext(
            self.state,
            self.python,
            self.folder / "bundle",
            self.sessions_max,
            self.cap_seconds,
            self.clock.payload_clock(),
        )
        return load("local", self.settings, context)

    def launch(self, key: str = "one", *, seconds: int = 3600, devices: int = 1, **document: object) -> Observed:
        """Launch a session whose agent does what ``document`` says."""
        launch = {"format": 1, "run": key, "clock": self.clock.payload_clock(), "lanes": [], **document}
        now = self.clock.now()
        return self.adapter().launch(LaunchRequest(key, "pool", devices, now + seconds, launch, "", {}), now)

    def find(self, key: str = "one") -> Observed:
        """Look at a session that must be known."""
        return self.adapter().find([key], self.clock.now())[key]

    def output(self, key: str = "one") -> bytes:
        """Everything a session has printed."""
        return b"".join(self.adapter().logs(key, 0, 1 << 30))

    def claim(self, key: str = "one") -> dict[str, int]:
        """The record of who runs a session."""
        claim: dict[str, int] = json.loads((self.state / key / "claim.json").read_text())
        return claim

    def until_ended(self, key: str = "one") -> Observed:
        """Wait for the end of a session."""
        self.until(lambda: self.find(key).state == SessionState.ENDED)
        return self.find(key)

    def until_ready(self, key: str = "one") -> None:
        """Wait until the agent has done what it was told to begin with."""
        self.until(lambda: b"ready" in self.output(key))

    @staticmethod
    def until(condition: Callable[[], bool]) -> None:
        """Wait, within reason, for something that no descriptor announces."""
        until(condition, "what the test waits for", every=0.01)

    def processes(self, key: str = "one") -> set[int]:
        """Agents and their descendants, by their environment; keepers are not among them."""
        mark = f"{MARK}={self.state / key}".encode()
        found = set()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.add(int(process.name))
        return found


@contextmanager
def service_manager(folder: Path) -> Iterator[str]:
    """Do what uff-local.socket makes the service manager do: start a runner for each connection to the path yielded."""
    started: list[subprocess.Popen[bytes]] = []
    address = str(folder / "runner.sock")

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with connection, (folder / "runner.log").open("ab") as log:
                if stopping.is_set():
                    return
                command = [sys.executable, "-I", "-m", "platforms.local.runner"]
                end = connection.fileno()
                started.append(subprocess.Popen(command, stdin=end, stdout=end, stderr=log, cwd="/"))

    stopping = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen()
        server = threading.Thread(target=serve)
        server.start()
        yield address
        stopping.set()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
            last.connect(address)
        server.join()
    for process in started:
        process.wait(PATIENCE_SECONDS)


@pytest.fixture(params=["child", "unit"])
def spawned_by(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How keepers are started: as children that leave, or by a service manager in units of their own."""
    if request.param == "child":
        yield request.param
        return
    with service_manager(tmp_path) as address:
        monkeypatch.setenv(RUNNER_VARIABLE, address)
        yield request.param


@pytest.fixture
def machine(tmp_path: Path, spawned_by: str) -> Iterator[Machine]:
    payload = tmp_path / "bundle" / "payload"
    payload.mkdir(parents=True)
    (payload / "agent.py").write_text(AGENT)
    made = Machine(tmp_path)
    yield made
    keys = [path.parent.name for path in made.state.glob("*/claim.json")]
    for key in keys:
        made.adapter().stop(key, made.clock.now(), force=True)
        if "keeper" in made.claim(key):
            made.until(lambda key=key: start_ticks(made.claim(key)["keeper"]) is None)  # type: ignore[misc]
        assert made.processes(key) == set()
