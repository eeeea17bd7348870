"""What a rehearsal has in place of Kaggle: the shipped emulator on the rehearsal's clock, or somebody else's."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scheduler.service.rehearsal import RehearsalError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from scheduler.app import App
    from scheduler.service.rehearsal import Rehearsal

_OWNER = "rehearsal"
_CREDENTIALS = "kaggle.json"
_PLATFORM = "kaggle"
_IDLE_SECONDS = 20
# Real seconds on the loopback interface, where nothing is far away and a scheduled hour may pass in one of them.
_HASTE = {
    "call_seconds": "5",
    "push_seconds": "5",
    "settle_seconds": "0",
    "ready_seconds": "10",
    "pause_milliseconds": "50",
    "idle_milliseconds": "100",
}


def stand_in(base: dict[str, Any], folder: Path, proxy: str) -> None:
    """Point every pool of Kaggle to a stand-in: the one at ``proxy``, or else one that ``standing_in`` will start.

    With a proxy the credentials are taken from the environment, and a pool named kaggle becomes one of Kaggle's.
    """
    pools = [
        {**pool, "platform": _PLATFORM} if proxy and pool.get("name") == _PLATFORM else pool for pool in base["pools"]
    ]
    address = proxy or f"http://127.0.0.1:{_free_port()}"
    # Kernels of the shipped emulator reach the artifact folder as those of Kaggle reach an object store; what somebody
    # else's can reach is not known.
    own = {} if proxy else {"checkpoints": "direct", "credentials": str(folder / _CREDENTIALS)}
    base["pools"] = [
        {**pool, "options": {**_HASTE, **own, **pool.get("options", {}), "emulator": address}}
        if pool.get("platform") == _PLATFORM
        else pool
        for pool in pools
    ]


@contextmanager
def standing_in(rehearsal: Rehearsal, app: App) -> Iterator[None]:
    """See to it that the shipped emulator runs while the rehearsal does, if a pool was pointed to it.

    Like the place it stands for, it outlives a crash of ours: the sessions on it go on, and a resumed rehearsal finds
    it again. It is ended with the rehearsal, or ends by itself when nothing happens on it any more.
    """
    credentials = rehearsal.folder / _CREDENTIALS
    pools = [pool for pool in app.settings.pools if pool.options.get("credentials") == str(credentials)]
    if not pools or _answers(pools[0].options["emulator"]):
        yield
        return
    hours = max((quota.limit_seconds for quota in pools[0].quotas), default=108_000) / 3_600
    figures = {
        "--port": pools[0].options["emulator"].rpartition(":")[2],
        "--owner": _OWNER,
        "--epoch": rehearsal.epoch,
        "--origin": rehearsal.origin,
        "--scale": rehearsal.scale,
        "--gpu-hours": hours,
        "--idle-seconds": _IDLE_SECONDS,
    }
    options = [str(word) for pair in figures.items() for word in pair]
    command = [sys.executable, "-m", "platforms.emulators.kaggle", str(rehearsal.folder / "kaggle"), *options]
    emulator = _Emulator(command, _key(credentials), rehearsal.folder / "kaggle.log")
    emulator.start()
    try:
        yield
    except BaseException:
        emulator.leave()
        raise
    emulator.end()


class _Emulator:
    """The emulator's process. When it dies before its time it is started again, and has forgotten everything."""

    def __init__(self, command: Sequence[str], key: str, log: Path) -> None:
        self._command = command
        self._key = key
        self._log = log
        self._left = threading.Event()
        self._process = self._spawn()

    def start(self) -> None:
        """Wait until it can be asked, then keep it running."""
        if not self._heard():
            raise RehearsalError(f"Kaggle's stand-in did not start; see {self._log}")
        threading.Thread(target=self._keep, name="kaggle stand-in", daemon=True).start()

    def leave(self) -> None:
        """Keep it no longer; it ends by itself."""
        self._left.set()

    def end(self) -> None:
        """End it and its sessions."""
        self.leave()
        self._process.terminate()
        self._process.wait()

    def _keep(self) -> None:
        self._process.wait()
        while not self._left.is_set():
            self._process = self._spawn()
            if not self._heard():
                return
            self._process.wait()

    def _spawn(self) -> subprocess.Popen[str]:
        with self._log.open("ab") as errors:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        if process.stdin is not None:
            process.stdin.write(f"{self._key}\n")
            process.stdin.close()
        return process

    def _heard(self) -> bool:
        """Wait for its address, which it says once it can be asked; return whether it came."""
        if self._process.stdout is None:
            raise AssertionError("a pipe was asked for")
        with self._process.stdout as said:
            return bool(said.readline())


def _answers(address: str) -> bool:
    """Tell whether an emulator that an interrupted rehearsal left is still there."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def _key(file: Path) -> str:
    """Return the API key of the emulated account, making one the first time."""
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(json.dumps({"username": _OWNER, "key": secrets.token_hex(16)}))
    return str(json.loads(file.read_text())["key"])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
