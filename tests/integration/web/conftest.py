"""What the tests of the status page share: a year of sessions, the page as a process of its own, a real browser."""

from __future__ import annotations

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
import pytest

from scheduler.clock import real_now
from tests.lab.web.world import World, write_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Serve = "Callable[..., AbstractContextManager[Served]]"


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


@pytest.fixture(scope="session")
def year(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world of forty jobs and four hundred sessions. Tests that change it take ``make_world``."""
    world = write_world(tmp_path_factory.mktemp("year"), 40, 400, int(real_now()))
    yield world
    world.database.close()


@pytest.fixture(scope="session")
def site(year: World) -> Iterator[Served]:
    """The status page over the year."""
    with served(year) as found:
        yield found


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """Makes small worlds of a test's own."""
    made: list[World] = []

    def make(jobs: int = 12, runs: int = 20, **more: Any) -> World:
        folder = tmp_path / f"world-{len(made)}"
        folder.mkdir()
        made.append(write_world(folder, jobs, runs, int(real_now()), **more))
        return made[-1]

    yield make
    for world in made:
        world.database.close()


@pytest.fixture
def serve() -> Any:
    """What serves a world for the length of a ``with`` block."""
    return served


# Not for the session: Playwright keeps an event loop running in this thread until it is stopped, and every later test
# that runs a loop of its own would be refused.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    program = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )
    if program is None:
        pytest.skip("no Chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    # Root may not use its sandbox; the pages are our own.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=program, args=options)
        yield found
        found.close()
