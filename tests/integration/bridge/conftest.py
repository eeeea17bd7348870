"""What the tests of the bridges share: a small world of jobs and sessions, and a port to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scheduler.clock import real_now
from tests.lab.port import PortClient, talking
from tests.lab.web.world import World, write_world

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Twelve jobs and twenty sessions."""
    found = write_world(tmp_path_factory.mktemp("bridge"), 12, 20, int(real_now()))
    yield found
    found.database.close()


@pytest.fixture(scope="module")
def port(world: World) -> Iterator[PortClient]:
    """A port that several tests talk to, one after the other."""
    with talking(world.config) as client:
        yield client
        assert client.end() == 0
