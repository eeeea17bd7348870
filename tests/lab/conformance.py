"""What the conformance suite asks of whoever brings a platform to it: a Place, in which its adapter works."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platforms.base import LaunchRequest, Observed, Platform, SessionState
from tests.lab.patience import until, until_state

SESSIONS_MAX = 2

# Stands in for the payload: says hello, then leaves, or waits to be asked to.
AGENT = """
import json, signal, sys
with open(sys.argv[1]) as stream:
    launch = json.load(stream)
if launch["lasting"]:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("hello from", launch["run"], flush=True)
if launch["lasting"]:
    signal.pause()
if leaves := launch.get("leaves"):
    open(leaves, "w").close()
"""


@dataclass
class Place:
    """What the suite must know of a place. It must allow SESSIONS_MAX sessions at a time.

    ``adapter`` makes a new adapter object, as a restarted daemon does. ``launch_lost`` launches a key in such a way
    that it will never run, as when a daemon dies half-way. ``later`` lets some time pass. ``outage`` holds the place
    in a condition in which it gives no answer. ``faults`` are those of a place that answers over HTTP, ``records`` the
    files on which an adapter's answers about a key rest. ``is_over`` tells whether the place knows that a session has
    ended whose agent has left, asking no adapter.
    """

    adapter: Callable[[], Platform]
    now: Callable[[], int]
    later: Callable[[], object]
    before_launch: Callable[[str, bool], object]
    launch_lost: Callable[[LaunchRequest], object]
    outage: Callable[[], AbstractContextManager[None]]
    bundle: str = ""
    faults: Any = None
    records: Callable[[str], list[Path]] = lambda _key: []
    is_over: Callable[[str], bool] = lambda _key: True
    asks_to_leave: bool = True  # stop(force=False) reaches the payload; else only the artifact store's stop flag does

    def request(self, key: str, *, lasting: bool = True, seconds: int = 3600) -> LaunchRequest:
        """A session that says hello, then lasts until it is stopped, or leaves at once."""
        self.before_launch(key, lasting)
        clock = {"epoch": 0.0, "origin": 0.0, "scale": 1.0}
        launch = {"format": 1, "run": key, "clock": clock, "lasting": lasting, "lanes": [], "leaves": self._leaves(key)}
        return LaunchRequest(key, "pool", 1, self.now() + seconds, launch, self.bundle, {})

    def let_end(self, key: str) -> None:
        """Let a session that leaves at once end while nobody looks."""

        def has_ended() -> bool:
            self.later()
            return (not self.bundle or Path(self._leaves(key)).exists()) and self.is_over(key)

        until(has_ended, f"the end of {key}")

    def _leaves(self, key: str) -> str:
        """Return the file that the agent makes when it leaves."""
        return f"{self.bundle}/{key}.left"

    def end(self, key: str) -> Observed:
        """End a session by force. As the daemon does, ask again until it is over."""
        adapter = self.adapter()

        def look() -> Observed | None:
            adapter.stop(key, self.now(), force=True)
            return adapter.find([key], self.now()).get(key)

        return until_state(look, SessionState.ENDED, SessionState.ABSENT, then=self.later)

    def until(self, key: str, *states: SessionState) -> Observed:
        """Wait, within reason, until the place reports one of ``states``."""
        adapter = self.adapter()
        return until_state(lambda: adapter.find([key], self.now()).get(key), *states, then=self.later)
