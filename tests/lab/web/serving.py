"""Serving: the status page as a process of its own, over a world's database."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from tests.lab.web.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Served:
    """A running status page and the database it reads."""

    address: str
    world: World

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Ask for a page; redirects are not followed."""
        return httpx.get(self.address + path, headers=headers, timeout=30, trust_env=False)

    def json(self, path: str) -> Any:
        """Return what the API answers, which must be a success."""
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextmanager
def served(world: World, **environ: str) -> Iterator[Served]:
    """Serve a world's database until the end of the block; the process must end well when asked to."""
    command = [
        sys.executable,
        "-m",
        "scheduler",
        "--config",
        str(world.config),
        "--json",
        "web",
        "serve",
        "--port",
        "0",
    ]
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("SCHEDCTL_", "CREDENTIALS_"))
    }
    log = world.config.with_name("web.log")
    with (
        log.open("ab") as talk,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=talk, text=True, env={**inherited, **environ}
        ) as process,
    ):
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said, log.read_text(encoding="utf-8")
        try:
            yield Served(json.loads(said)["address"].rstrip("/"), world)
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0, log.read_text(encoding="utf-8")
