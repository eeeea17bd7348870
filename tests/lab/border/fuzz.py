"""As many odd documents and answers as are asked for, and what memory they may come to."""

from __future__ import annotations

import tracemalloc
from random import Random
from typing import TYPE_CHECKING

from jobs.nouns.window import HOUR
from tests.lab.border.world import World

if TYPE_CHECKING:
    from tests.lab.simulation.database import Laboratory

MEMORY_MAX = 24 << 20  # bytes that may come to what is in use after the first tenth
_TURNS_BETWEEN_LOOKS = 200


def fuzz(laboratory: Laboratory, count: int, seed: int) -> World:
    """Return the world after ``count`` odd documents and answers."""
    laboratory.clean()
    world = World(laboratory.people, Random(seed))
    tracemalloc.start()
    turns = 0
    while world.told < count:
        world.turn(world.rng.choice((60, 60, 600, HOUR)))
        turns += 1
        if turns % _TURNS_BETWEEN_LOOKS == 0:
            world.measure()
    world.measure()
    tracemalloc.stop()
    return world
