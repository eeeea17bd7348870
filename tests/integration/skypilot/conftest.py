"""A stand-in of SkyPilot's server, with an agent that says hello and lasts, or leaves at once."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from platforms.base import LaunchRequest, Observed, Platform, SessionState
from platforms.registry import PlatformContext, load
from scheduler.clock import real_now
from tests.lab.conformance import AGENT
from tests.lab.patience import until, until_state
from tests.lab.sky_server import SkyServer

OWNER = "0badcafe"


@dataclass
class World:
    """One pool at the server. Every adapter is a new one, as of a restarted daemon."""

    folder: Path
    server: SkyServer
    options: dict[str, str] = field(default_factory=dict)
    state: str = "state"

    def adapter(self, **options: str) -> Platform:
        """A new adapter with further options."""
        context = PlatformContext(self.folder / self.state, sys.executable, self.folder / "bundle", sessions_max=4)
        usual = {"address": self.server.address, "poll_seconds": "0", "python": sys.executable, "owner": OWNER}
        return load("skypilot", {**usual, **self.options, **options}, context)

    def request(self, key: str, *, lasting: bool = True, seconds: int = 3600) -> LaunchRequest:
        """A session."""
        launch = {"format": 1, "run": key, "lasting": lasting, "lanes": [{"devices": [0]}]}
        return LaunchRequest(key, "pool", 2, int(real_now()) + seconds, launch, "", {})

    def launch(self, key: str, *, lasting: bool = True) -> Observed:
        """Launch a session."""
        return self.adapter().launch(self.request(key, lasting=lasting), int(real_now()))

    def find(self, key: str, later: int = 0) -> Observed | None:
        """Look at a session, as if ``later`` seconds had passed."""
        return self.adapter().find([key], int(real_now()) + later).get(key)

    def until(self, key: str, *states: SessionState, later: int = 0) -> Observed:
        """Wait for a state."""
        return until_state(lambda: self.find(key, later), *states)

    def running(self, key: str) -> Observed:
        """Launch a session and wait until it has said hello."""
        self.launch(key)
        found = self.until(key, SessionState.RUNNING)
        until(lambda: self.output(key), "its hello")
        return found

    def output(self, key: str) -> bytes:
        """What the session printed."""
        return b"".join(self.adapter().logs(key, 0, 1 << 20))

    def name(self, key: str) -> str:
        """The name of a session's cluster."""
        return f"uff-{OWNER}-{key}"

    def launches(self) -> list[str]:
        """The clusters that the server was asked to launch, once for each time."""
        return sorted(one.cluster for one in list(self.server.requests.values()) if one.name == "sky.launch")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """An empty pool at an empty server."""
    (tmp_path / "bundle" / "payload").mkdir(parents=True)
    (tmp_path / "bundle" / "payload" / "agent.py").write_text(AGENT)
    with SkyServer(tmp_path / "cloud") as server:
        yield World(tmp_path, server)
    until(lambda: not server.left(), "the end of all processes")
