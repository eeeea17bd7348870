"""A Kaggle account on this machine, and what is needed to launch on it."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import jobs
from jobs.payload.clock import Clock
from platforms.artifacts.directory import DirectoryStore
from platforms.base import LaunchRequest, Observed, Platform, SessionState
from platforms.emulators.kaggle.server import KaggleServer
from platforms.local.processes import MARK
from platforms.registry import PlatformContext, load
from scheduler.app import App, load_app
from scheduler.store.engine import open_database
from tests.lab.clocks import starting_now
from tests.lab.kaggle import Habits, PublishingPlace, PublishingServer
from tests.lab.patience import until, until_state
from tests.lab.training import TRAINING

EPOCH = 1_763_769_600  # a Saturday
SECRET = "canary-5ecret-0f-al1ce"


# Settings of a daemon that has nothing but this account.
DAEMON = """
state_dir = "{state}"

[artifacts]
kind = "directory"
root = "{store}"

[clock]
epoch = {epoch}
origin = {origin}
scale = {scale}

[[pools]]
name = "kaggle"
platform = "kaggle"
session_cap = "12h"
stop_margin = "30s"
options = {{ emulator = "{address}", credentials = "{key}", idle_milliseconds = "100", pause_milliseconds = "0" }}
"""


@dataclass
class Account:
    """An emulated account and its server; ``scale`` scheduled seconds pass in a real one."""

    folder: Path
    place: PublishingPlace
    server: KaggleServer
    clock: Any
    store: DirectoryStore
    patience: threading.Event = field(default_factory=threading.Event)

    def now(self) -> int:
        """Scheduled UTC seconds."""
        return int(self.clock.now())

    def adapter(self, state: str = "state", store_kind: str = "", **settings: str) -> Platform:
        """A new adapter, as a restarted daemon makes it."""
        context = PlatformContext(
            self.folder / state,
            sys.executable,
            Path(jobs.__file__).parent,
            sessions_max=2,
            clock=self.clock.payload_clock(),
            store_kind=store_kind,
        )
        usual = {
            "emulator": self.server.address,
            "credentials": str(self.folder / "kaggle.json"),
            "pause_milliseconds": "0",
            "idle_milliseconds": "100",
            "call_seconds": "5",
            "push_seconds": "5",
        }
        return load("kaggle", usual | settings, context)

    def app(self, folder: Path) -> App:
        """A daemon's settings and database in ``folder``, with this account as the only pool."""
        text = DAEMON.format(
            state=folder / "state",
            store=folder / "store",
            address=self.server.address,
            key=self.folder / "kaggle.json",
            **self.clock.payload_clock(),
        )
        (folder / "settings.toml").write_text(text)
        app = load_app(folder / "settings.toml", {})
        app.settings.state_dir.mkdir()
        open_database(app.settings.database_url, create=True).close()
        return app

    def request(self, key: str, training: str, *, seconds: int = 3600, **lane: Any) -> LaunchRequest:
        """A session of the shipped payload with one lane of the job ``ufm``."""
        usual = {
            "index": 0,
            "job": "ufm",
            "attempt": 1,
            "devices": [],
            "seed": 1,
            "target_step": 100,
            "command": ["{python}", "-c", TRAINING, training],
            "environment": {},
            "data": "",
            "setup_seconds": 60,
            "checkpoint_seconds": 10,
            "restore": [],
        }
        deadline = self.now() + seconds
        launch = {
            "format": 1,
            "run": key,
            "clock": self.clock.payload_clock(),
            "deadline": deadline,
            "stop_margin_seconds": 120,
            "heartbeat_seconds": 30,
            "grace_seconds": 120,
            "mtbf_seconds": 108_000,
            "store": {"kind": "directory", "root": str(self.folder / "store")},
            "expected_devices": None,
            "lanes": [usual | lane],
        }
        return LaunchRequest(key, "pool", 1, deadline, launch, "", {})

    def until(self, key: str, *states: SessionState) -> Observed:
        """Wait, within reason, until a new adapter sees one of ``states``."""
        adapter = self.adapter()
        return until_state(lambda: adapter.find([key], self.now()).get(key), *states)

    def until_said(self, key: str, words: str) -> None:
        """Wait until the session printed ``words``."""
        until(lambda: words in self.output(key), f"{key} to print {words!r}")

    def settle(self, key: str) -> Observed:
        """Wait for the end and bring home what the session left."""
        ended = self.until(key, SessionState.ENDED)
        self.adapter().collect(key, self.store, self.now())
        return ended

    def output(self, key: str) -> str:
        """What the session printed so far, as its user sees it."""
        return b"".join(self.adapter().logs(key, 0, 1 << 20)).decode()

    def result(self, key: str) -> dict[str, Any]:
        """The last word of the session's only lane."""
        return dict(json.loads(self.store.read(f"runs/{key}/lane-0/result.json")))


@pytest.fixture
def account_at(tmp_path: Path) -> Iterator[Callable[..., Account]]:
    """Open an account under rules of one's own; no kernel's process outlives the test."""
    opened: list[Account] = []

    def open_account(scale: float = 60.0, **rules: Any) -> Account:
        clock = starting_now(EPOCH, scale)
        usual: dict[str, Any] = {"queue_seconds": 0.02 * scale, "dataset_seconds": 0.02 * scale}
        payload_clock = Clock(**clock.payload_clock())
        folder = tmp_path / f"account-{len(opened)}"
        place = PublishingPlace(folder / "emulator", payload_clock, "alice", SECRET, Habits(**(usual | rules)))
        folder.mkdir()
        (folder / "kaggle.json").write_text(json.dumps({"username": "alice", "key": SECRET}))
        (folder / "kaggle.json").chmod(0o600)
        server = PublishingServer(place).__enter__()
        opened.append(Account(folder, place, server, clock, DirectoryStore(folder / "store")))
        return opened[-1]

    yield open_account
    for account in opened:
        account.server.close()
    mark = f"{MARK}={tmp_path}/".encode()
    assert [path for path in Path("/proc").glob("[0-9]*/environ") if mark in _content(path)] == []


@pytest.fixture
def account(account_at: Callable[..., Account]) -> Account:
    """An account under the usual rules, a minute in a second."""
    return account_at()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
