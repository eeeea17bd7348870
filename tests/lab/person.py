"""A person at the desk of a manual pool."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from platforms.artifacts.base import BlobStore, open_store
from platforms.base import SessionState
from platforms.manual.adapter import ManualPlatform
from scheduler.clock import real_now
from tests.lab.patience import pause


class Person:
    """Takes every offer at once, runs its notebook as a kernel would, and hands in what it leaves."""

    def __init__(self, desk: ManualPlatform, folder: Path) -> None:
        self._desk, self._folder = desk, folder
        self._sessions: dict[str, subprocess.Popen[bytes]] = {}
        self._interrupted: set[str] = set()

    def look(self) -> None:
        """Do what there is to be done now."""
        for key in sorted(self._desk.keys()):
            offer, observed, wanted_back = self._desk.show(key, int(real_now())) or (None, None, False)
            if observed is None or offer is None:
                continue
            if observed.state is SessionState.QUEUED and offer.deadline > real_now():
                self._run(key)
            session = self._sessions.get(key)
            if observed.state is not SessionState.RUNNING or session is None:
                continue
            if session.poll() is not None:
                self._desk.give(key, self._folder / key / f"{key}-result.zip", self._store(), int(real_now()))
            elif wanted_back:
                self._interrupt(key)

    def leave(self) -> None:
        """Go home: end what still runs."""
        for key, session in self._sessions.items():
            while session.poll() is None:
                self._interrupt(key)
                pause()
            # The interruption may come when the program has ended and its interpreter has not.
            assert session.returncode in {0, -signal.SIGINT}, key

    def _interrupt(self, key: str) -> None:
        """Interrupt the cell, once it shows that the session runs."""
        if key not in self._interrupted and (self._folder / key / key / "output.log").exists():
            self._interrupted.add(key)
            self._sessions[key].send_signal(signal.SIGINT)

    def _run(self, key: str) -> None:
        folder = self._folder / key
        notebook = self._desk.take(key, "Ada", folder, int(real_now()))[0]
        cells = json.loads(notebook.read_bytes())["cells"]
        (folder / "cell.py").write_text("".join(cells[1]["source"]))
        self._sessions[key] = subprocess.Popen([sys.executable, "cell.py"], cwd=folder, start_new_session=True)

    def _store(self) -> BlobStore:
        return open_store("directory", self._folder / "store", {})
