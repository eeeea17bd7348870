"""The status page as a process of its own over a world's database, and the browser that looks at it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from tests.lab.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.web.world import World

FLAGS = ("--font-render-hinting=none", "--disable-lcd-text", "--force-color-profile=srgb", "--hide-scrollbars")
"""What Chromium is started with, so that it draws the same on every machine."""


@dataclass(frozen=True)
class Served:
    """A running status page, the database it reads, and its process."""

    address: str
    world: World
    pid: int

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Ask for a page; redirects are not followed."""
        return httpx.get(self.address + path, headers=headers, timeout=PATIENCE_SECONDS, trust_env=False)

    def json(self, path: str) -> Any:
        """Return what the API answers, which must be a success."""
        answer = self.get(path)
        if answer.status_code != 200:
            raise AssertionError(answer.text)
        return answer.json()


@contextmanager
def served(world: World, **environ: str) -> Iterator[Served]:
    """Serve a world's database until the end of the block; the process must end well when asked to."""
    words = ["--config", str(world.config), "--json", "web", "serve", "--port", "0"]
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("SCHEDCTL_", "CREDENTIALS_"))
    }
    log = world.config.with_name("web.log")
    with (
        log.open("ab") as talk,
        subprocess.Popen(
            [sys.executable, "-m", "scheduler", *words],
            stdout=subprocess.PIPE,
            stderr=talk,
            text=True,
            env={**inherited, **environ},
        ) as process,
    ):
        said = process.stdout.readline() if process.stdout else ""
        if not said:
            raise AssertionError(log.read_text(encoding="utf-8"))
        try:
            yield Served(json.loads(said)["address"].rstrip("/"), world, process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
    if process.returncode:
        raise AssertionError(log.read_text(encoding="utf-8"))


def missing() -> str:
    """Return what is not there that a browser needs; "" for nothing."""
    if _program() is None:
        return "no Chromium"
    return "" if importlib.util.find_spec("playwright") else "playwright is not installed"


@contextmanager
def chromium() -> Iterator[Any]:
    """Run Chromium, without a window, until the end of the block."""
    driver: Any = importlib.import_module("playwright.sync_api")
    # Root may not use its sandbox; the pages are our own.
    options = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else [*FLAGS]
    with driver.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=_program(), args=options)
        yield browser
        browser.close()


def _program() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
