"""The daemon and its service manager, in real processes: what is told by sd_notify, the watchdog's food, reloads."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from scheduler import line
from scheduler.store import events, limits
from scheduler.store.engine import open_database
from tests.lab.patience import PATIENCE_SECONDS, until

CONFIG = """
state_dir = "state"
models = []

[daemon]
cycle = "1s"

[report]
alerts_every = "15m"

[[pools]]
name = "desk"
platform = "local"
"""


@dataclass
class Manager:
    """A stand-in for the service manager: the socket it listens on, and a daemon that tells it how it is."""

    folder: Path
    ear: socket.socket
    daemon: subprocess.Popen[bytes] = field(init=False)

    @property
    def config(self) -> Path:
        """The settings of the daemon."""
        return self.folder / "config.toml"

    @property
    def state(self) -> Path:
        """The daemon's state folder."""
        return self.folder / "state"

    def start(self) -> None:
        """Start the daemon as a service manager does."""
        schedctl = [sys.executable, "-m", "scheduler", "--config", str(self.config)]
        subprocess.run([*schedctl, "db", "init"], check=True, stdout=subprocess.DEVNULL)
        runtime = self.folder / "run"
        runtime.mkdir(exist_ok=True)
        environment = {**os.environ, "NOTIFY_SOCKET": self.ear.getsockname(), "RUNTIME_DIRECTORY": str(runtime)}
        with (self.folder / "log").open("ab") as log:
            self.daemon = subprocess.Popen(
                [*schedctl, "daemon"], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def hear(self) -> dict[str, str]:
        """Wait for the next datagram; return its assignments and check that the daemon itself sent it."""
        data, control, _, _ = self.ear.recvmsg(4096, socket.CMSG_SPACE(struct.calcsize("3i")))
        pid = struct.unpack("3i", control[0][2])[0]
        assert pid == self.daemon.pid
        return dict(word.split("=", 1) for word in data.decode().splitlines())

    def hear_until(self, name: str) -> dict[str, str]:
        """Wait for a datagram that assigns ``name``."""
        while name not in (heard := self.hear()):
            pass
        return heard

    def forget(self) -> None:
        """Throw away what was told before."""
        self.ear.setblocking(False)
        with suppress(BlockingIOError):
            while self.ear.recv(4096):
                pass

    def log(self) -> str:
        """What the daemon has said."""
        return (self.folder / "log").read_text()

    def event(self, kind: str) -> events.Event:
        """Wait for an event of the daemon's own."""
        database = open_database(f"sqlite:///{self.state}/scheduler.db")

        def look() -> list[events.Event]:
            with database.read() as tx:
                return events.tail(tx, kinds=(kind,))

        try:
            return until(look, kind)[-1]
        finally:
            database.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    (tmp_path / "config.toml").write_text(CONFIG)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(tmp_path / "notify"))
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        ear.settimeout(60)
        found = Manager(tmp_path, ear)
        found.start()
        yield found
        if found.daemon.poll() is None:
            found.daemon.kill()
        found.daemon.wait()


def test_ready_comes_first_and_each_finished_cycle_feeds_the_watchdog(manager: Manager) -> None:
    first = manager.hear()
    assert first["READY"] == "1"
    for _ in range(3):
        heard = manager.hear()
        assert heard == {"WATCHDOG": "1", "STATUS": "0 running, 0 waiting"}


def test_stopping_is_told_with_a_request_for_time_and_the_line_goes(manager: Manager) -> None:
    manager.hear_until("WATCHDOG")
    folders = (str(manager.state), str(manager.folder / "run"))
    until(lambda: [line.read(folder) for folder in folders] == ["0 running, 0 waiting"] * 2, "the line")
    manager.daemon.send_signal(signal.SIGTERM)
    assert "sessions continue" in manager.hear_until("STOPPING")["STATUS"]
    assert int(manager.hear_until("EXTEND_TIMEOUT_USEC")["EXTEND_TIMEOUT_USEC"]) == 30_000_000
    assert manager.daemon.wait(PATIENCE_SECONDS) == 0
    assert [line.read(folder) for folder in folders] == [None, None]


def test_a_daemon_that_cannot_write_feeds_no_watchdog(manager: Manager) -> None:
    """Renewals fail while somebody holds the write lock; cycles that only read still end, and must not count."""
    manager.hear_until("WATCHDOG")
    database = open_database(f"sqlite:///{manager.state}/scheduler.db")
    with database.write():

        def refused() -> bool:
            manager.forget()  # cycles go on, and what they tell fills the socket until somebody reads it
            return "lease.not_renewed" in manager.log()

        until(refused, "a renewal that fails")
        manager.forget()
        manager.ear.settimeout(2.5)
        with suppress(TimeoutError):  # a cycle that was about to end when the renewal failed may still tell so
            manager.ear.recv(4096)
        with pytest.raises(TimeoutError):
            manager.ear.recv(4096)
    manager.ear.settimeout(60)
    database.close()
    assert manager.hear_until("WATCHDOG")


def test_a_reload_takes_new_settings_over_while_everything_goes_on(manager: Manager) -> None:
    manager.hear_until("WATCHDOG")
    more = '[[pools]]\nname = "second"\nplatform = "local"\n'
    manager.config.write_text(CONFIG + more)
    manager.daemon.send_signal(signal.SIGHUP)
    assert int(manager.hear_until("RELOADING")["MONOTONIC_USEC"]) > 0
    manager.hear_until("READY")
    assert manager.event("daemon.reloaded").data["pools"] == "desk, second"
    assert (manager.state / "sessions" / "second").is_dir()
    assert manager.hear_until("WATCHDOG")
    assert manager.daemon.poll() is None


UNUSABLE = (
    ('state_dir = "state"\ncycle = "1s"\n', "there is no such key"),
    (CONFIG.replace('"local"', '"lokal"'), "there is no such platform"),
    (CONFIG.replace("models = []", 'models = ["gone.toml"]'), "gone.toml"),
    (CONFIG.replace('"state"', '"elsewhere"'), "cannot change while the daemon runs"),
    ("state_dir = ", "config.toml"),
)


def refused_for(manager: Manager, why: str) -> bool:
    """Whether the newest refusal of new settings says why."""
    return why in manager.event("daemon.reload_refused").data["why"]


def test_settings_that_cannot_be_used_change_nothing_and_are_told(manager: Manager) -> None:
    """One after the other to one daemon, which goes on with what it has."""
    manager.hear_until("READY")
    for told, (text, why) in enumerate(UNUSABLE, 1):
        manager.hear_until("WATCHDOG")
        manager.config.write_text(text)
        manager.daemon.send_signal(signal.SIGHUP)
        manager.hear_until("READY")
        until(partial(refused_for, manager, why), why)
        refusals = [json.loads(said) for said in manager.log().splitlines() if "config.not_reloaded" in said]
        assert len(refusals) == told, text
        assert why in refusals[-1]["why"], text
        assert manager.hear_until("WATCHDOG")
        assert not (manager.folder / "elsewhere").exists()


WAITING = """
[[pools]]
name = "kaggle"
platform = "kaggle"
options = { credentials = "TOKEN" }

[[pools]]
name = "cloud"
platform = "sagemaker"
options = { region = "us-east-1" }

[[pools]]
name = "moon"
platform = "moonbase"
"""


def closed(manager: Manager) -> dict[str, str]:
    """Return why pools are closed, by name."""
    database = open_database(f"sqlite:///{manager.state}/scheduler.db")
    try:
        with database.read() as tx:
            return {pool: why for pool, (_, why) in limits.closures(tx).items()}
    finally:
        database.close()


def test_pools_that_cannot_be_used_wait_for_a_person_while_the_daemon_works(manager: Manager) -> None:
    """No credentials, a setting that is none and a platform that is none; each is mended in its own way."""
    manager.daemon.terminate()
    manager.daemon.wait()
    manager.forget()
    manager.ear.settimeout(60)
    token = manager.folder / "token"
    manager.config.write_text(CONFIG + WAITING.replace("TOKEN", str(token)))
    manager.start()
    manager.hear_until("WATCHDOG")
    # A platform that is slow to answer is closed by a later cycle than the first.
    until(lambda: len(closed(manager)) == 3, "three closed pools")
    found = closed(manager)
    assert sorted(found) == ["cloud", "kaggle", "moon"]
    assert all(why.startswith("waits for a person: ") for why in found.values())
    assert str(token) in found["kaggle"]
    assert "missing: bucket" in found["cloud"]
    assert "Known platforms" in found["moon"]
    token.touch(mode=0o600)
    token.write_text("a-token-0123456789")
    until(lambda: "kaggle" not in closed(manager), "the pool whose token came")
    manager.config.write_text(CONFIG + WAITING.replace("TOKEN", str(token)).split('[[pools]]\nname = "moon"')[0])
    manager.daemon.send_signal(signal.SIGHUP)
    assert manager.event("daemon.reloaded").data["pools"] == "cloud, desk, kaggle"
    manager.config.write_text(CONFIG.replace('platform = "local"', 'platform = "local"\noptions = { nise = "1" }'))
    manager.daemon.send_signal(signal.SIGHUP)
    assert "nise" in manager.event("daemon.reload_refused").data["why"], "what works is not broken by new settings"


def test_a_credential_that_is_exchanged_is_taken_over_without_a_signal(manager: Manager) -> None:
    manager.daemon.terminate()
    manager.daemon.wait()
    manager.forget()
    manager.ear.settimeout(60)
    handed = manager.folder / "credentials"
    handed.mkdir()
    secret = handed / "report.smtp.password"
    secret.touch(mode=0o600)
    secret.write_text("hunter2-hunter2")
    os.environ["CREDENTIALS_DIRECTORY"] = str(handed)
    try:
        manager.start()
    finally:
        del os.environ["CREDENTIALS_DIRECTORY"]
    manager.hear_until("WATCHDOG")
    secret.write_text("hunter3-hunter3")
    manager.event("daemon.reloaded")
    assert "hunter" not in manager.log()
