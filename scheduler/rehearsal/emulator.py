"""An emulator's process, as a rehearsal runs it: it outlives a crash of ours, and is started again when it dies."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from scheduler.rehearsal.folder import RehearsalError


class Emulator:
    """A program that says its address once it can be asked. ``told`` is what it reads from its standard input."""

    def __init__(self, name: str, command: Sequence[str], log: Path, told: str = "") -> None:
        self._name = name
        self._command = command
        self._log = log
        self._told = told
        self._left = threading.Event()
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, wait until it can be asked, and keep it running. Raises RehearsalError when it does not start."""
        self._process = process = self._spawned()
        if not _heard(process):
            raise RehearsalError(f"the stand-in of {self._name} did not start; see {self._log}")
        threading.Thread(target=self._keep, args=(process,), name=f"{self._name} stand-in", daemon=True).start()

    def leave(self) -> None:
        """Keep it no longer; it ends by itself when nothing happens on it any more."""
        self._left.set()

    def end(self) -> None:
        """End it and its sessions."""
        self.leave()
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _keep(self, process: subprocess.Popen[str]) -> None:
        process.wait()
        while not self._left.is_set():
            self._process = again = self._spawned()
            if not _heard(again):
                return
            again.wait()

    def _spawned(self) -> subprocess.Popen[str]:
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
            process.stdin.write(self._told)
            process.stdin.close()
        return process


def _heard(process: subprocess.Popen[str]) -> bool:
    """Wait for a program's first line; return whether it came."""
    if process.stdout is None:
        raise AssertionError("a pipe was asked for")
    with process.stdout as said:
        return bool(said.readline())


def answers(address: str) -> bool:
    """Tell whether somebody listens at ``http://host:port``."""
    host, _, port = address.removeprefix("http://").rstrip("/").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except (OSError, ValueError):
        return False
    return True


def free_port() -> int:
    """Return a port of the loopback interface that nobody uses at present."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
