"""A PostgreSQL server of our own, on a socket in a temporary folder, that can be killed and started again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.patience import until

if TYPE_CHECKING:
    from collections.abc import Iterator


def programs() -> Path | None:
    """Return the folder of the newest server programs that are installed."""
    installed = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))]
    initdb = installed[-1] if installed else shutil.which("initdb")
    return None if initdb is None else Path(initdb).parent


@dataclass(frozen=True)
class Server:
    """A server whose data lie in ``folder``; ``durable`` makes commits survive even a power cut, and slow."""

    programs: Path
    folder: Path
    durable: bool = False

    @classmethod
    @contextmanager
    def running(cls, *, durable: bool = False) -> Iterator[Server]:
        """Run a server with an empty database ``postgres`` until the body ends. Skips without its programs."""
        pytest.importorskip("psycopg", reason="psycopg is not installed")
        found = programs()
        if found is None:
            pytest.skip("no PostgreSQL server programs")
        # The server refuses to run as root, and a socket's path must be short.
        server = cls(found, Path(tempfile.mkdtemp(prefix="pg-")), durable)
        if os.geteuid() == 0:
            shutil.chown(server.folder, "postgres")
        try:
            server._run("initdb", "--no-sync", "-U", "postgres", "-A", "trust", "-E", "UTF8")
            server.start()
            yield server
        finally:
            server.remove()

    @property
    def url(self) -> str:
        """The URL of its database."""
        return f"postgresql+psycopg://postgres@/postgres?host={self.folder}"

    def start(self) -> None:
        """Start it and wait until it answers; after :meth:`kill` it recovers what was committed."""
        options = f"-k {self.folder} -c listen_addresses= -c fsync={'on' if self.durable else 'off'}"
        words = ("start", "-w", "-l", str(self.folder / "log"), "-o", options)
        # It does not start while a process of the one that was killed is still about to leave.
        until(lambda: self._run("pg_ctl", *words, check=False) == 0, f"the server of {self.folder}")

    def kill(self) -> None:
        """Send SIGKILL to the postmaster; its children notice and leave."""
        pid = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        """Stop it, if it runs, and remove its data."""
        if (self.folder / "data" / "postmaster.pid").exists():
            self._run("pg_ctl", "stop", "-m", "immediate", check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *options: str, check: bool = True) -> int:
        as_server = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        command = [*as_server, str(self.programs / program), "-D", str(self.folder / "data"), *options]
        done = subprocess.run(
            command,
            cwd=self.folder,
            check=check,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        return done.returncode
