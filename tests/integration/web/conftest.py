"""What the tests of the status page share: a year of sessions, the page as a process of its own, a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from scheduler.clock import real_now
from tests.lab.web.site import Served, chromium, missing, served
from tests.lab.web.world import World, write_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


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


@pytest.fixture(scope="session")
def serve() -> Any:
    """What serves a world for the length of a ``with`` block."""
    return served


# Not for the session: Playwright keeps an event loop running in this thread until it is stopped, and every later test
# that runs a loop of its own would be refused.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, without a window."""
    if why := missing():
        pytest.skip(why)
    with chromium() as found:
        yield found
