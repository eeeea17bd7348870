"""What every test shares: a marker for its tier, repeatable properties, and the work tree it checks."""

from pathlib import Path

import pytest
from hypothesis import settings

TESTS = Path(__file__).parent
ROOT = TESTS.parent

# No deadline: a slow machine is no failure. Derandomised: a red run stays red when repeated.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its tier, the folder under tests/ that it lies in."""
    for item in items:
        if item.path.is_relative_to(TESTS):
            item.add_marker(item.path.relative_to(TESTS).parts[0])


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root folder of the work tree."""
    return ROOT
