"""One laboratory for all simulations: a database file in memory, emptied before each."""

from collections.abc import Iterator

import pytest

from tests.lab.simulation.database import Laboratory


@pytest.fixture(scope="session")
def laboratory() -> Iterator[Laboratory]:
    """The folder and the database in which simulations run."""
    with Laboratory() as made:
        yield made
